//! Registration of metrics, and the metrics page.
//!
//! Each component has its own families, in a `metrics.rs` of its folder: a struct with one method
//! for each observation. This module holds only what they share. Label values are words of fixed
//! sets, and never a client's own. Every series is on the page from the start, so that the first
//! increment of a counter is an increase to Prometheus. Metrics that each call observes count by
//! thread ([`per_thread`]).

mod errors;
mod per_thread;
mod process;
mod repairs;

use prometheus::{
    Encoder, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

pub use errors::Errors;
pub use per_thread::{Counter, Counters, Histogram, Tally};
pub use process::Process;
pub use prometheus::Error;
pub use repairs::{Repair, Repairs};

/// A label and every value that it may have.
pub type Label<'a> = (&'a str, &'a [&'a str]);

/// Registers metrics under one prefix and renders them. Clones share the registry.
#[derive(Clone, Default)]
pub struct Registrar(Registry);

impl Registrar {
    /// Creates an empty registry whose names all begin with `prefix`; the default has no prefix.
    ///
    /// # Errors
    /// If `prefix` is empty.
    pub fn new(prefix: &str) -> Result<Self, Error> {
        Ok(Self(Registry::new_custom(Some(prefix.to_owned()), None)?))
    }

    /// Adds a metric that was created elsewhere.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn add(&self, metric: impl prometheus::core::Collector + Clone + 'static) -> Result<(), Error> {
        self.0.register(Box::new(metric))
    }

    /// Registers a counter.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn counter(&self, name: &str, help: &str) -> Result<Counter, Error> {
        let counter = Counter::new(IntCounter::new(name, help)?);
        self.add(counter.clone())?;
        Ok(counter)
    }

    /// Registers a counter for each value of one label, to be counted by the number of the value.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn counters(&self, name: &str, help: &str, label: Label<'_>) -> Result<Counters, Error> {
        let (label, values) = label;
        let counters = Counters::new(IntCounterVec::new(Opts::new(name, help), &[label])?, values)?;
        self.add(counters.clone())?;
        Ok(counters)
    }

    /// Registers a counter for each value of one label.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn family(&self, name: &str, help: &str, label: Label<'_>) -> Result<IntCounterVec, Error> {
        let (label, values) = label;
        let family = IntCounterVec::new(Opts::new(name, help), &[label])?;
        for value in values {
            family.get_metric_with_label_values(&[value])?;
        }
        self.add(family.clone())?;
        Ok(family)
    }

    /// Registers a counter for each pair of values of two labels.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn families(&self, name: &str, help: &str, labels: [Label<'_>; 2]) -> Result<IntCounterVec, Error> {
        let family = IntCounterVec::new(Opts::new(name, help), &labels.map(|(label, _)| label))?;
        let [(_, first_values), (_, second_values)] = labels;
        for first in first_values {
            for second in second_values {
                family.get_metric_with_label_values(&[first, second])?;
            }
        }
        self.add(family.clone())?;
        Ok(family)
    }

    /// Registers a gauge that is always 1 and whose label holds a fact.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn info(&self, name: &str, help: &str, label: &str, value: &str) -> Result<(), Error> {
        let family = IntGaugeVec::new(Opts::new(name, help), &[label])?;
        family.get_metric_with_label_values(&[value])?.set(1);
        self.add(family)
    }

    /// Registers a gauge.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        let gauge = IntGauge::new(name, help)?;
        self.add(gauge.clone())?;
        Ok(gauge)
    }

    /// Registers a gauge of things that begin and end.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn tally(&self, name: &str, help: &str) -> Result<Tally, Error> {
        let tally = Tally::new(IntGauge::new(name, help)?);
        self.add(tally.clone())?;
        Ok(tally)
    }

    /// Registers a histogram with these upper bounds of its buckets.
    ///
    /// # Errors
    /// If its name is taken.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, Error> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let histogram = Histogram::new(prometheus::Histogram::with_opts(options)?);
        self.add(histogram.clone())?;
        Ok(histogram)
    }

    /// Appends all metrics to `page`, in the text format of Prometheus.
    pub fn render_to(&self, page: &mut Vec<u8>) {
        // Writing to memory does not fail, and every family was registered with its name and help.
        let _ = TextEncoder::new().encode(&self.0.gather(), page);
    }
}
