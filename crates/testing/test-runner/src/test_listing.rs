use std::{collections::BTreeSet, sync::Arc};

use tokio::task::JoinSet;

use crate::test_binaries::Binary;

/// One test of a binary.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) binary: Arc<Binary>,
    /// Path of the test within the binary.
    pub(crate) name: String,
}

impl Test {
    /// The name by which the test is selected and reported.
    pub(crate) fn full_name(&self) -> String {
        format!("{}::{}", self.binary.id, self.name)
    }
}

/// The tests of several binaries.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) tests: Vec<Test>,
    /// Full names of the tests with `#[ignore]`.
    pub(crate) ignored: Vec<String>,
}

/// Lists the tests of every binary.
///
/// # Errors
/// When a binary cannot list its tests.
pub(crate) async fn list(binaries: &[Arc<Binary>]) -> Result<Listed, String> {
    let mut listings: JoinSet<_> = binaries.iter().cloned().map(list_binary).collect();
    let mut all = Listed::default();
    while let Some(listed) = listings.join_next().await {
        let listed = listed.map_err(|error| error.to_string())??;
        all.tests.extend(listed.tests);
        all.ignored.extend(listed.ignored);
    }
    all.tests.sort_by_cached_key(Test::full_name);
    all.ignored.sort();
    Ok(all)
}

async fn list_binary(binary: Arc<Binary>) -> Result<Listed, String> {
    let all = names(&binary, &[]).await?;
    let ignored = names(&binary, &["--ignored"]).await?;
    let listed = |name: &String| Test { binary: binary.clone(), name: name.clone() };
    Ok(Listed {
        tests: all.difference(&ignored).map(listed).collect(),
        ignored: ignored.iter().map(|name| listed(name).full_name()).collect(),
    })
}

async fn names(binary: &Binary, which: &[&str]) -> Result<BTreeSet<String>, String> {
    let output = binary.command().args(["--list", "--format=terse"]).args(which).output().await;
    let output = output.map_err(|error| format!("{}: {error}", binary.path.display()))?;
    match output.status.success() {
        true => Ok(parse(&String::from_utf8_lossy(&output.stdout))),
        false => {
            Err(format!("{} does not list its tests: {}", binary.id, String::from_utf8_lossy(&output.stderr)))
        }
    }
}

/// Parses lines such as `some::name: test`.
fn parse(listing: &str) -> BTreeSet<String> {
    listing.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_listing_ignores_benchmarks_and_remarks() {
        let listing = "a::b: test\nc: benchmark\nd - should panic: test\n\n3 tests, 1 benchmark\n";
        assert_eq!(Vec::from_iter(parse(listing)), ["a::b", "d - should panic"]);
    }
}
