use std::thread::available_parallelism;

use clap::Parser;

/// Concurrent tests per core. More than one, because most tests wait for processes and timers.
const JOBS_PER_CORE: usize = 3;

/// Runs the tests of the workspace, several at a time.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Runs only tests whose name contains one of these, such as `tls::`, `fairmesh::faults` or `client::mesh::poll`
    filters: Vec<String>,
    /// Builds and runs only the integration tests of this name, such as `faults` or `mesh`
    #[arg(long, value_name = "NAME")]
    test: Vec<String>,
    /// Builds and runs only unit tests of libraries
    #[arg(long)]
    lib: bool,
    /// Runs only documentation tests
    #[arg(long, conflicts_with_all = ["filters", "test", "lib"])]
    doc: bool,
    /// Tests that run at the same time [default: three for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// Counts a skipped test as failed
    #[arg(long)]
    pub(crate) no_skips: bool,
}

impl Options {
    /// Arguments of `cargo test` that select what is built.
    pub(crate) fn cargo_selection(&self) -> Vec<String> {
        let mut arguments: Vec<String> =
            self.test.iter().flat_map(|name| ["--test".into(), name.clone()]).collect();
        arguments.extend(self.lib.then(|| "--lib".into()));
        arguments
    }

    /// Whether a test of this name is to run.
    pub(crate) fn selects(&self, name: &str) -> bool {
        !self.doc && (self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter)))
    }

    /// Whether documentation tests run: with everything else, or alone.
    pub(crate) fn with_doc_tests(&self) -> bool {
        self.doc || self.filters.is_empty() && self.test.is_empty() && !self.lib
    }

    pub(crate) fn jobs(&self) -> usize {
        let cores = available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or(JOBS_PER_CORE * cores).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        Options::parse_from([&["test-runner"], arguments].concat())
    }

    #[test]
    fn selection_of_test_targets_excludes_documentation_tests() {
        assert!(options(&[]).with_doc_tests() && options(&["--doc"]).with_doc_tests());
        for selection in [&["tls"][..], &["--test", "faults"], &["--lib"]] {
            assert!(!options(selection).with_doc_tests(), "{selection:?}");
        }
    }

    #[test]
    fn test_filter_matches_part_of_name() {
        let some = options(&["tls::", "mesh::poll"]);
        assert!(some.selects("fairmesh::faults::tls::a") && some.selects("client::mesh::poll::b"));
        assert!(!some.selects("client::mesh::policy::c"));
        assert!(options(&[]).selects("any") && !options(&["--doc"]).selects("any"));
    }
}
