//! The report of a benchmark: a table for readers, a JSON object for programs.

use std::{collections::BTreeMap, fmt, fs, io, path::Path};

use serde_json::json;

/// The figures of one run.
#[derive(Debug)]
pub(crate) struct Report {
    name: &'static str,
    figures: Vec<Figure>,
    candidate: Option<String>,
    peers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Figure {
    name: String,
    /// The measured value. `None` if it could not be measured.
    value: Option<f64>,
    goal: Option<Goal>,
    note: String,
}

/// Condition under which a goal is met.
#[derive(Clone, Copy, Debug)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    Within(f64, f64),
}

impl Goal {
    fn reached(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::Within(least, most) => (least..=most).contains(&value),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded as figures are, because a goal may be computed, as one beyond noise is.
        let shown = |limit: &f64| (limit * 1e3).round() / 1e3;
        match self {
            Self::AtMost(most) => write!(f, "≤ {}", shown(most)),
            Self::AtLeast(least) => write!(f, "≥ {}", shown(least)),
            Self::Within(least, most) => write!(f, "{}–{}", shown(least), shown(most)),
        }
    }
}

impl Report {
    /// An empty report of the benchmark called `name`.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, figures: Vec::new(), candidate: None, peers: BTreeMap::new() }
    }

    /// Adds a figure. `goal`, if given, is the maximum that meets the goal; `note` gives unit and spread.
    pub(crate) fn figure(
        &mut self,
        name: impl Into<String>,
        value: f64,
        goal: Option<f64>,
        note: impl Into<String>,
    ) {
        let goal = goal.map(Goal::AtMost);
        self.figures.push(Figure { name: name.into(), value: Some(value), goal, note: note.into() });
    }

    /// Adds a figure with a minimum as its goal.
    pub(crate) fn figure_at_least(
        &mut self,
        name: impl Into<String>,
        value: f64,
        least: f64,
        note: impl Into<String>,
    ) {
        let goal = Some(Goal::AtLeast(least));
        self.figures.push(Figure { name: name.into(), value: Some(value), goal, note: note.into() });
    }

    /// Adds a figure whose goal is an inclusive range.
    pub(crate) fn figure_within(
        &mut self,
        name: impl Into<String>,
        value: f64,
        (least, most): (f64, f64),
        note: impl Into<String>,
    ) {
        let goal = Some(Goal::Within(least, most));
        self.figures.push(Figure { name: name.into(), value: Some(value), goal, note: note.into() });
    }

    /// Adds a figure that could not be measured.
    pub(crate) fn unmeasured(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.figures.push(Figure { name: name.into(), value: None, goal: None, note: why.into() });
    }

    /// Checks that everything was measured.
    ///
    /// # Errors
    /// Names the unmeasured figures.
    pub(crate) fn complete(&self) -> Result<(), String> {
        let missing = self.figures.iter().filter(|figure| figure.value.is_none());
        let missing: Vec<_> = missing.map(|figure| figure.name.as_str()).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("not measured: {}", missing.join(", "))) }
    }

    /// Records which Fairmesh program was measured, if there are several.
    pub(crate) fn candidate(&mut self, program: impl Into<String>) {
        self.candidate = Some(program.into());
    }

    /// Records a peer that was measured, with its version.
    pub(crate) fn peer(&mut self, name: impl Into<String>, version: impl Into<String>) {
        self.peers.insert(name.into(), version.into());
    }

    /// Writes `{"name", "figures", "candidate", "peers", "machine"}`.
    pub(crate) fn write_json(&self, path: &Path) -> io::Result<()> {
        let figures: serde_json::Map<_, _> =
            self.figures.iter().map(|figure| (figure.name.clone(), json!(figure.value))).collect();
        let object = json!({
            "name": self.name,
            "figures": figures,
            "candidate": self.candidate,
            "peers": self.peers,
            "machine": machine(),
        });
        fs::write(path, format!("{object:#}\n"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {:>12} {:>10}  reached  note", self.name, "figure", "goal")?;
        for Figure { name, value, goal, note } in &self.figures {
            let shown = value.map_or("not measured".into(), |value| format!("{value:.3}"));
            let reached = match goal.zip(*value) {
                Some((goal, value)) if goal.reached(value) => "yes",
                Some(_) => "no",
                None => "",
            };
            let goal = goal.map(|goal| goal.to_string()).unwrap_or_default();
            writeln!(f, "{name:<24} {shown:>12} {goal:>10}  {reached:<7}  {note}")?;
        }
        if let Some(program) = &self.candidate {
            writeln!(f, "measured: {program}")?;
        }
        for (peer, version) in &self.peers {
            writeln!(f, "beside: {peer} {version}")?;
        }
        Ok(())
    }
}

/// Description of the machine. Figures of different machines are not comparable.
fn machine() -> serde_json::Value {
    let line_after = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    json!({
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "cpu": line_after("/proc/cpuinfo", "model name"),
        "memory": line_after("/proc/meminfo", "MemTotal"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "arch": std::env::consts::ARCH,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_json_report_has_documented_form() {
        let mut report = Report::new("pick");
        report.figure("ns_10", 41.5, Some(60.0), "ns");
        report.peer("random pick", "of this build");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pick.json");
        report.write_json(&path).unwrap();
        let object: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(object["name"], "pick");
        assert_eq!(object["figures"]["ns_10"], 41.5);
        assert_eq!(object["peers"]["random pick"], "of this build");
        assert!(object["machine"]["cores"].as_u64() >= Some(1));
    }

    #[test]
    fn bench_table_marks_missed_goals() {
        let mut report = Report::new("pick");
        report.figure("ns_10", 41.5, Some(60.0), "ns");
        report.figure("shard_ns", 300.0, Some(250.000_04), "ns");
        let table = report.to_string();
        assert!(table.lines().any(|line| line.starts_with("ns_10") && line.contains("yes")), "{table}");
        assert!(
            table.lines().any(|line| line.starts_with("shard_ns") && line.contains("≤ 250  no ")),
            "{table}"
        );
    }

    #[test]
    fn bench_range_goal_is_missed_below_and_above() {
        let reached = |value| {
            let mut report = Report::new("balance");
            report.figure_within("ratio", value, (0.9, 1.1), "");
            report.to_string().contains("yes")
        };
        assert_eq!([0.89, 0.9, 1.1, 1.11].map(reached), [false, true, true, false]);
    }

    #[test]
    fn unmeasured_figure_is_reported_as_null_with_reason() {
        let mut report = Report::new("balance");
        report.figure("cv", 0.1, None, "");
        assert_eq!(report.complete(), Ok(()));
        report.unmeasured("real_cv", "no control groups");
        assert_eq!(report.complete(), Err("not measured: real_cv".into()));
        let table = report.to_string();
        assert!(table.contains("not measured") && table.contains("no control groups"), "{table}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("balance.json");
        report.write_json(&path).unwrap();
        let object: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert!(object["figures"]["real_cv"].is_null() && object["figures"]["cv"].is_f64());
    }
}
