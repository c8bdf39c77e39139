//! Process metrics under the standard names of Prometheus client libraries: CPU, memory,
//! descriptors, start.
//!
//! The values are read from `/proc` when the page is rendered. On other systems than Linux only the
//! start is known.

use std::fs;
use std::sync::Mutex;

use prometheus::{Counter, Gauge, Opts};

use super::{Error, Registrar};
use mcp_resume_base::clock;
use mcp_resume_base::sync;

/// Metrics of the process, in a registry of their own: these names have no prefix.
pub struct Process {
    registrar: Registrar,
    cpu_seconds: Mutex<Counter>,
    threads: Gauge,
    resident: Gauge,
    virtual_memory: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
}

impl Process {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new() -> Result<Self, Error> {
        let registrar = Registrar::default();
        let gauge = |name: &str, help: &str| {
            let gauge = Gauge::with_opts(Opts::new(name, help))?;
            registrar.add(gauge.clone())?;
            Ok::<_, Error>(gauge)
        };
        gauge("process_start_time_seconds", "When the process began, in seconds since 1970.")?
            .set(clock::wall().as_secs_f64());
        let cpu =
            Counter::with_opts(Opts::new("process_cpu_seconds_total", "CPU time, of user and system, in seconds."))?;
        registrar.add(cpu.clone())?;
        Ok(Self {
            cpu_seconds: Mutex::new(cpu),
            threads: gauge("process_threads", "Threads.")?,
            resident: gauge("process_resident_memory_bytes", "Memory in use, in bytes.")?,
            virtual_memory: gauge("process_virtual_memory_bytes", "Address space in use, in bytes.")?,
            open_fds: gauge("process_open_fds", "Open file descriptors.")?,
            max_fds: gauge("process_max_fds", "File descriptors that may be open.")?,
            registrar,
        })
    }

    /// Reads the current values, and appends them to `page` in the text format of Prometheus.
    pub fn render_to(&self, page: &mut Vec<u8>) {
        self.refresh();
        self.registrar.render_to(page);
    }

    fn refresh(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let of_status = |key| field(&status, key);
        const KIB: f64 = 1024.0;
        set(&self.resident, of_status("VmRSS:").map(|kib| kib * KIB));
        set(&self.virtual_memory, of_status("VmSize:").map(|kib| kib * KIB));
        set(&self.threads, of_status("Threads:"));
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        set(&self.max_fds, field(&limits, "Max open files"));
        // Reading the directory takes one descriptor itself.
        set(&self.open_fds, fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count().saturating_sub(1) as f64));
        if let Some(cpu) = clock::cpu() {
            let counter = sync::lock(&self.cpu_seconds);
            counter.inc_by((cpu.as_secs_f64() - counter.get()).max(0.0));
        }
    }
}

fn set(gauge: &Gauge, value: Option<f64>) {
    if let Some(value) = value {
        gauge.set(value);
    }
}

/// Returns the first number of the line that begins with `key`.
fn field(text: &str, key: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_of_a_line_is_read() {
        let text = "Name:\tx\nVmRSS:\t    5120 kB\nMax open files            1024                 524288               files\n";
        assert_eq!((field(text, "VmRSS:"), field(text, "Max open files")), (Some(5120.0), Some(1024.0)));
        assert_eq!((field(text, "Threads:"), field(text, "Name:")), (None, None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn every_metric_of_this_process_is_known() {
        let process = Process::new().unwrap();
        process.refresh();
        let families = process.registrar.0.gather();
        assert_eq!(families.len(), 7);
        for family in families {
            let metric = &family.get_metric()[0];
            let value = metric.get_gauge().get_value() + metric.get_counter().get_value();
            assert!(value > 0.0, "{}", family.name());
        }
    }
}
