//! Whether tables send a region calls of other classes than before.
//!
//! Classes may differ tenfold in work, and a shift moves the lowest class first: it alone changes the work per call of both
//! regions, which is no noise of reports.

/// Mixes that differ by more than this part of the calls have another work per call.
const OTHER_MIX: f64 = 0.02;

/// Whether these calls per second are of other classes by the present shares than by those before, in a region that gets any.
/// All are by source, then class.
pub(crate) fn is_other_mix(demand: &[f64], classes: usize, (before, present): (&[u32], &[u32])) -> bool {
    let Some(now) = mix(demand, classes, present) else { return false };
    mix(demand, classes, before).is_none_or(|before| {
        let differences = before.iter().zip(&now).map(|(before, now)| (before - now).abs());
        differences.sum::<f64>() / 2.0 > OTHER_MIX
    })
}

/// The parts that the classes are of all calls; `None` of no calls.
fn mix(demand: &[f64], classes: usize, shares: &[u32]) -> Option<Vec<f64>> {
    let mut rates = vec![0.0; classes];
    for (row, (demand, share)) in demand.iter().zip(shares).enumerate() {
        rates[row % classes] += demand * f64::from(*share);
    }
    let total: f64 = rates.iter().sum();
    (total > 0.0).then(|| rates.into_iter().map(|rate| rate / total).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_other_once_two_percent_of_calls_are_of_another_class() {
        let is_other = |before: [u32; 4], present: [u32; 4]| {
            is_other_mix(&[80.0, 20.0, 40.0, 10.0], 2, (&before, &present))
        };
        let at_home = [10_000, 10_000, 0, 0];
        assert!(!is_other(at_home, [5_000, 5_000, 0, 0]), "half as many calls of each class");
        assert!(!is_other(at_home, [10_000, 10_000, 5_000, 5_000]), "another source with the same classes");
        assert!(!is_other(at_home, [10_000, 9_500, 0, 0]), "less than a hundredth");
        assert!(is_other(at_home, [10_000, 8_000, 0, 0]));
        assert!(is_other([0; 4], at_home) && !is_other(at_home, [0; 4]), "no calls have no classes");
    }
}
