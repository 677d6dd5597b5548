/// The 99th percentile by nearest rank: the smallest value such that at least 99 % of the values do not exceed it.
/// With fewer than 100 values, it is the largest value. `None` if there are no values. Reorders `values`.
pub fn p99(values: &mut [u64]) -> Option<u64> {
    nearest_rank(values, 99)
}

/// The median by nearest rank. For an even number of values it is the lower of the two middle values. `None` if there
/// are no values. Reorders `values`.
pub fn median(values: &mut [u64]) -> Option<u64> {
    nearest_rank(values, 50)
}

fn nearest_rank(values: &mut [u64], percent: usize) -> Option<u64> {
    if values.is_empty() {
        return None;
    }
    let rank = (values.len() * percent).div_ceil(100);
    Some(*values.select_nth_unstable(rank - 1).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank_percentile_is_exact_at_rank_boundaries() {
        let p99_of = |n: u64| p99(&mut (1..=n).rev().collect::<Vec<_>>());
        assert_eq!(p99_of(0), None);
        for n in 1..100 {
            assert_eq!(p99_of(n), Some(n), "the largest of {n}");
        }
        assert_eq!(p99_of(100), Some(99));
        assert_eq!(p99_of(101), Some(100));
        assert_eq!(p99_of(200), Some(198));
        assert_eq!(p99_of(1000), Some(990));
        assert_eq!(median(&mut [9, 1, 5]), Some(5));
        assert_eq!(median(&mut [9, 1, 5, 7]), Some(5));
    }
}
