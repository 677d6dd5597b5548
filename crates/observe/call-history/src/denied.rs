use std::collections::BTreeMap;

use fairmesh_model::DeniedPath;

use crate::ring::MINUTES;

/// The most paths of denied calls.
const MAX_PATHS: usize = 4_096;
/// The caller that stands for those beyond.
const OTHER: &str = "(other)";

/// Calls that rules do not allow, by minute.
#[derive(Debug, Default)]
pub(crate) struct DeniedCalls(BTreeMap<DeniedPath, BTreeMap<u64, u64>>);

impl DeniedCalls {
    /// Adds calls to a minute. Beyond the bound callers are not told apart, and with too many services nothing is added: `false`.
    pub(crate) fn add(&mut self, path: DeniedPath, minute: u64, count: u64) -> bool {
        let path = match self.0.contains_key(&path) || self.0.len() < MAX_PATHS {
            true => path,
            false => DeniedPath { caller: Some(OTHER.to_owned()), rule: None, ..path },
        };
        if !self.0.contains_key(&path) && self.0.len() >= 2 * MAX_PATHS {
            return false;
        }
        let sum = self.0.entry(path).or_default().entry(minute).or_default();
        *sum = sum.saturating_add(count);
        true
    }

    pub(crate) fn forget_before(&mut self, minute: u64) {
        self.0.retain(|_, minutes| {
            *minutes = minutes.split_off(&minute);
            !minutes.is_empty()
        });
    }

    /// The sums from a minute on.
    pub(crate) fn since(&self, minute: u64) -> impl Iterator<Item = (&DeniedPath, u64)> {
        let sums = self.0.iter().map(move |(path, minutes)| {
            (path, minutes.range(minute..).fold(0, |sum: u64, (_, count)| sum.saturating_add(*count)))
        });
        sums.filter(|(_, count)| *count > 0)
    }
}

/// The first minute of an hour that ends with this one.
pub(crate) fn first_minute(minute: u64) -> u64 {
    (minute + 1).saturating_sub(MINUTES)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::ServiceName;

    use super::*;

    #[test]
    fn callers_beyond_the_bound_are_others() {
        let mut denied = DeniedCalls::default();
        let service = ServiceName::new("shop/cart").unwrap();
        for n in 0..MAX_PATHS + 3 {
            let caller = Some(format!("spiffe://mesh/shop/c{n}"));
            let path = DeniedPath { service: service.clone(), caller, rule: None, is_audit: false };
            assert!(denied.add(path, 1, 1));
        }
        let others = denied.since(0).filter(|(path, _)| path.caller.as_deref() == Some(OTHER));
        assert_eq!(others.map(|(_, count)| count).collect::<Vec<_>>(), [3]);
        assert_eq!(denied.since(2).count(), 0);
        denied.forget_before(2);
        assert!(denied.0.is_empty());
    }
}
