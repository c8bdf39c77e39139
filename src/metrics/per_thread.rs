//! Counters, tallies and histograms that several threads observe without contention.
//!
//! Each thread counts in a part of its own. A metrics page moves the counts of all parts to the
//! metric that it shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use prometheus::core::{Collector, Desc};
use prometheus::local::LocalHistogram;
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge};

use super::Error;
use mcp_resume_base::sync::{self, PerThread};

/// A counter. Clones share the count.
#[derive(Clone)]
pub struct Counter {
    counted: Arc<PerThread<AtomicU64>>,
    shown: IntCounter,
}

impl Counter {
    pub(super) fn new(shown: IntCounter) -> Self {
        Self { counted: Arc::default(), shown }
    }

    /// Counts one.
    pub fn inc(&self) {
        self.inc_by(1);
    }

    /// Counts `count` at once.
    pub fn inc_by(&self, count: u64) {
        self.counted.own().fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the count of all threads.
    pub fn get(&self) -> u64 {
        self.gather();
        self.shown.get()
    }

    /// Moves the counts of all threads to the metric that is shown.
    fn gather(&self) {
        self.shown.inc_by(self.counted.iter().map(|counted| counted.swap(0, Ordering::Relaxed)).sum());
    }
}

impl Collector for Counter {
    fn desc(&self) -> Vec<&Desc> {
        self.shown.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gather();
        self.shown.collect()
    }
}

/// Counters of one name, by the values of a label.
#[derive(Clone)]
pub struct Counters {
    counters: Arc<[Counter]>,
    shown: IntCounterVec,
}

impl Counters {
    pub(super) fn new(shown: IntCounterVec, values: &[&str]) -> Result<Self, Error> {
        let of = |value: &&str| shown.get_metric_with_label_values(&[*value]).map(Counter::new);
        let counters = values.iter().map(of).collect::<Result<_, _>>()?;
        Ok(Self { counters, shown })
    }

    /// Counts one for the value of this number among those at the registration. Does nothing for an
    /// unknown number.
    pub fn inc(&self, value: usize) {
        if let Some(counter) = self.counters.get(value) {
            counter.inc();
        }
    }
}

impl Collector for Counters {
    fn desc(&self) -> Vec<&Desc> {
        self.shown.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.counters.iter().for_each(Counter::gather);
        self.shown.collect()
    }
}

/// Number of things that have begun and not ended, on any thread. Clones share the number.
#[derive(Clone)]
pub struct Tally {
    /// Changes, which wrap: more may end on a thread than began there.
    changes: Arc<PerThread<AtomicU64>>,
    shown: IntGauge,
}

impl Tally {
    pub(super) fn new(shown: IntGauge) -> Self {
        Self { changes: Arc::default(), shown }
    }

    /// Counts a beginning.
    pub fn inc(&self) {
        self.changes.own().fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an end.
    pub fn dec(&self) {
        self.changes.own().fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number over all threads.
    pub fn get(&self) -> i64 {
        self.gather();
        self.shown.get()
    }

    fn gather(&self) {
        let changes = self.changes.iter().map(|changes| changes.swap(0, Ordering::Relaxed));
        self.shown.add(changes.fold(0, u64::wrapping_add).cast_signed());
    }
}

impl Collector for Tally {
    fn desc(&self) -> Vec<&Desc> {
        self.shown.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gather();
        self.shown.collect()
    }
}

/// A histogram. Clones share the observations.
#[derive(Clone)]
pub struct Histogram {
    observed: Arc<PerThread<Mutex<LocalHistogram>>>,
    shown: prometheus::Histogram,
}

impl Histogram {
    pub(super) fn new(shown: prometheus::Histogram) -> Self {
        Self { observed: Arc::new(PerThread::new(|| Mutex::new(shown.local()))), shown }
    }

    /// Adds an observation.
    pub fn observe(&self, value: f64) {
        sync::lock(self.observed.own()).observe(value);
    }
}

impl Collector for Histogram {
    fn desc(&self) -> Vec<&Desc> {
        self.shown.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for observed in self.observed.iter() {
            sync::lock(observed).flush();
        }
        self.shown.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::Registrar;

    /// Returns the lines of the metrics page with samples.
    fn page(registry: &Registrar) -> Vec<String> {
        let mut page = Vec::new();
        registry.render_to(&mut page);
        let page = String::from_utf8(page).unwrap();
        page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// Runs `observe` on eight threads.
    fn on_threads(observe: impl Fn() + Sync) {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(&observe);
            }
        });
    }

    #[test]
    fn the_page_shows_the_counts_of_all_threads_at_each_scrape() {
        let registry = Registrar::default();
        let counter = registry.counter("c_total", "Count.").unwrap();
        let counters = registry.counters("f_total", "Counts.", ("of", &["a", "b"])).unwrap();
        assert_eq!(page(&registry), ["c_total 0", r#"f_total{of="a"} 0"#, r#"f_total{of="b"} 0"#]);
        for scrape in 1..3 {
            on_threads(|| {
                counter.inc();
                counter.inc_by(2);
                counters.inc(1);
            });
            let (of_counter, of_value) =
                (format!("c_total {}", 24 * scrape), format!(r#"f_total{{of="b"}} {}"#, 8 * scrape));
            assert_eq!(page(&registry), [&of_counter, r#"f_total{of="a"} 0"#, &of_value]);
            assert_eq!(counter.get(), 24 * scrape);
        }
    }

    #[test]
    fn a_tally_may_fall_on_another_thread_than_it_rose() {
        let registry = Registrar::default();
        let tally = registry.tally("g", "Things.").unwrap();
        (0..10).for_each(|_| tally.inc());
        on_threads(|| tally.dec());
        assert_eq!((tally.get(), page(&registry)), (2, vec!["g 2".to_owned()]));
        on_threads(|| tally.dec());
        assert_eq!(page(&registry), ["g -6"]);
    }

    #[test]
    fn a_histogram_has_the_observations_of_all_threads_in_its_buckets() {
        let registry = Registrar::default();
        let histogram = registry.histogram("h", "Times.", &[1.0, 4.0]).unwrap();
        on_threads(|| [0.5, 1.0, 2.0, 8.0].into_iter().for_each(|value| histogram.observe(value)));
        let wanted =
            [r#"h_bucket{le="1"} 16"#, r#"h_bucket{le="4"} 24"#, r#"h_bucket{le="+Inf"} 32"#, "h_sum 92", "h_count 32"];
        assert_eq!(page(&registry), wanted);
        assert_eq!(page(&registry), wanted, "the same without new observations");
    }
}
