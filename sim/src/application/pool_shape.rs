//! The latency of a pool in the optimizer's form.

use std::collections::BTreeMap;

/// Lowest utilisation at which the formula is fitted.
const LEAST: f64 = 0.05;
const GREATEST: f64 = 0.9;
const STEPS: u32 = 35;

/// `(base + sensitivity ÷ (1 − load)) × work`: the least squares fit to a queue with the same number of cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PoolShape {
    pub(crate) sensitivity: f64,
    pub(crate) base: f64,
}

impl PoolShape {
    /// Returns the shape for all pools of a service, by the mean number of their cores: the optimizer has one
    /// sensitivity for all of them.
    pub(crate) fn of(cores: &BTreeMap<String, f64>) -> Self {
        let placed: Vec<f64> = cores.values().copied().filter(|cores| *cores > 0.0).collect();
        let mean = placed.iter().sum::<f64>() / placed.len().max(1) as f64;
        Self::fit(mean.round().max(1.0) as u32)
    }

    fn fit(cores: u32) -> Self {
        let loads = (0..=STEPS).map(|step| LEAST + (GREATEST - LEAST) * f64::from(step) / f64::from(STEPS));
        let points: Vec<(f64, f64)> =
            loads.map(|load| ((1.0 - load).recip(), response(cores, load))).collect();
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
        let above = mean(&|point| (point.0 - x) * (point.1 - y));
        let below = mean(&|point| (point.0 - x) * (point.0 - x));
        let sensitivity = above / below;
        Self { sensitivity, base: (y - sensitivity * x).max(0.0) }
    }
}

/// Mean time in a system with this number of cores at this utilisation, as a multiple of the work (Erlang's C formula).
/// Also valid for cores with processor sharing, whatever the distribution of the work.
fn response(cores: u32, load: f64) -> f64 {
    let offered = load * f64::from(cores);
    // Erlang B by its recursion, which avoids overflowing factorials.
    let blocked = (1..=cores).fold(1.0, |blocked, n| offered * blocked / (f64::from(n) + offered * blocked));
    let waits = blocked / (1.0 - load * (1.0 - blocked));
    1.0 + waits / (f64::from(cores) * (1.0 - load))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_of_one_core_has_latency_sensitivity_1_and_no_base() {
        let shape = PoolShape::fit(1);
        assert!((shape.sensitivity - 1.0).abs() < 1e-9 && shape.base < 1e-9, "{shape:?}");
    }

    #[test]
    fn pool_of_eight_cores_adds_little_wait_until_nearly_full() {
        // Erlang's C formula has 0.357 for eight servers and an offered load of 6.
        assert!((response(8, 0.75) - (1.0 + 0.357 / (8.0 * 0.25))).abs() < 2e-3, "{}", response(8, 0.75));
        let shape = PoolShape::fit(8);
        assert!(shape.sensitivity < 0.2 && shape.base > 0.7, "{shape:?}");
    }
}
