//! What a pool of servers costs: `sensitivity × work / (1 − load)` milliseconds of all its calls, surcharges above its kinks, and a
//! ceiling.
//!
//! Kinks and the ceiling are smoothed by the method of multipliers: a ramp as steep as the pool's own curvature, moved after each
//! iteration until the load settles on the threshold (Bertsekas 1982, "Constrained Optimization and Lagrange Multiplier
//! Methods", chapter 3). A fixed narrow ramp was rejected, because Newton's method stalls at it.

use super::problem::ServicePools;

/// Above this load the cost goes on as a parabola, so that plans above capacity have finite derivatives. No ceiling is above it: prices of a
/// parabola give no bound.
pub(super) const EXTENDED: f64 = 0.99;
/// The true cost is cut off at this load; no plan for use is near.
const CUT_OFF: f64 = 0.999;
/// The price above the ceiling grows by this factor while the excess is above `SETTLED_EXCESS` and does not shrink, because the
/// way around a full pool may be dearer than the farthest trip. With a factor of 2, Newton's method stalled.
const DEARER: f64 = 1.4;
const SETTLED_EXCESS: f64 = 5e-5;
/// Width of the ceiling's ramp, in units of load.
const CEILING_WIDTH: f64 = 0.2;
/// A multiplier settles when it moves by less than this part of its move before; otherwise its ramp is made steeper by this factor.
const SETTLING: f64 = 0.5;
const STEEPER: f64 = 0.7;
/// A ramp becomes at most so many times as steep: with 10, Newton's method began to stall again.
const STEEPEST: f64 = 4.0;
/// Least width of a kink's ramp, in units of load.
const KINK_WIDTH: f64 = 1e-4;

#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) capacity: f64,
    sensitivity: f64,
    /// Standard error, as a part of predicted times.
    pub(super) error: f64,
    ceiling: f64,
    /// Milliseconds per unit of work over the width of the ceiling's ramp.
    ceiling_price: f64,
    ceiling_multiplier: f64,
    /// How far the load was above the ceiling at the last update.
    last_excess: f64,
    kinks: Vec<Ramp>,
}

#[derive(Clone, Copy, Debug)]
struct Ramp {
    load: f64,
    surcharge: f64,
    width: f64,
    /// Between 0 and 1.
    multiplier: f64,
    least_width: f64,
    /// How far the multiplier moved last.
    moved: f64,
}

/// First and second derivative of a pool's cost by work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slope {
    pub(super) price: f64,
    pub(super) curvature: f64,
}

impl Pool {
    /// A pool of so much capacity, under a ceiling, in a mesh whose farthest regions are so many milliseconds apart.
    pub(super) fn new(pools: &ServicePools, capacity: f64, (ceiling, farthest): (f64, f64)) -> Self {
        let idle = 1.0 - ceiling;
        let kinks = pools.kinks.iter().map(|kink| {
            let own = 2.0 * pools.sensitivity / (1.0 - kink.load).powi(3);
            let width = if own > 0.0 { (kink.surcharge / own).max(KINK_WIDTH) } else { CEILING_WIDTH };
            let least_width = width / STEEPEST;
            Ramp {
                load: kink.load,
                surcharge: kink.surcharge,
                width,
                least_width,
                multiplier: 0.0,
                moved: 0.0,
            }
        });
        Self {
            capacity,
            sensitivity: pools.sensitivity,
            error: pools.error,
            ceiling,
            ceiling_price: (5.0 * pools.sensitivity / (idle * idle)).max(farthest).max(1e-6),
            ceiling_multiplier: 0.0,
            last_excess: 0.0,
            kinks: kinks.collect(),
        }
    }

    /// Milliseconds of all calls in a second, without the ceiling.
    pub(super) fn cost(&self, work: f64) -> f64 {
        let load = work / self.capacity;
        let above = |kink: &Ramp| kink.surcharge * (load - kink.load).max(0.0) * self.capacity;
        self.sensitivity * work / (1.0 - load.min(CUT_OFF)) + self.kinks.iter().map(above).sum::<f64>()
    }

    /// Milliseconds that a unit of work takes at this load, without surcharges.
    pub(super) fn latency(&self, work: f64) -> f64 {
        self.sensitivity / (1.0 - (work / self.capacity).min(CUT_OFF))
    }

    /// Derivatives of the smoothed cost.
    pub(super) fn slope(&self, work: f64) -> Slope {
        let load = work / self.capacity;
        let idle = 1.0 / (1.0 - load.min(EXTENDED));
        let mut slope = Slope {
            price: self.sensitivity * idle * idle,
            curvature: 2.0 * self.sensitivity / self.capacity * idle * idle * idle,
        };
        slope.price += slope.curvature * (load - EXTENDED).max(0.0) * self.capacity;
        for kink in &self.kinks {
            let height = kink.height(load);
            slope.price += kink.surcharge * height.clamp(0.0, 1.0);
            if height > 0.0 && height < 1.0 {
                slope.curvature += kink.surcharge / (kink.width * self.capacity);
            }
        }
        let ceiling = self.ceiling_height(load);
        if ceiling > 0.0 {
            slope.price += ceiling;
            slope.curvature += self.ceiling_price / (CEILING_WIDTH * self.capacity);
        }
        slope
    }

    fn ceiling_height(&self, load: f64) -> f64 {
        self.ceiling_multiplier + self.ceiling_price * (load - self.ceiling) / CEILING_WIDTH
    }

    /// Moves multipliers to the prices at this work (the method of multipliers).
    pub(super) fn update_multipliers(&mut self, work: f64) {
        let load = work / self.capacity;
        self.kinks.iter_mut().for_each(|kink| kink.update(load));
        self.ceiling_multiplier = self.ceiling_height(load).max(0.0);
        let excess = load - self.ceiling;
        if excess > SETTLED_EXCESS && self.last_excess > 0.0 && excess > SETTLING * self.last_excess {
            self.ceiling_price *= DEARER;
        }
        self.last_excess = excess;
    }

    /// Multipliers of the ceiling and of each kink, to start the next plan from.
    pub(super) fn multipliers(&self) -> Vec<f64> {
        std::iter::once(self.ceiling_multiplier)
            .chain(self.kinks.iter().map(|kink| kink.multiplier))
            .collect()
    }

    /// Starts from the multipliers of another plan.
    pub(super) fn set_multipliers(&mut self, multipliers: &[f64]) {
        let Some((ceiling, kinks)) = multipliers.split_first() else { return };
        self.ceiling_multiplier = *ceiling;
        for (kink, multiplier) in self.kinks.iter_mut().zip(kinks) {
            kink.multiplier = *multiplier;
        }
    }

    /// The least of `cost(work) − price × work` up to the ceiling: the concave conjugate, by which each price gives a bound.
    pub(super) fn least_at(&self, price: f64) -> f64 {
        let mut surcharge = 0.0;
        let mut start = 0.0;
        let ends = self.kinks.iter().map(|kink| (kink.load, kink.surcharge));
        let mut best = self.ceiling;
        for (end, further) in ends.chain(std::iter::once((self.ceiling, 0.0))) {
            // The derivative is sensitivity / (1 − load)² + surcharge.
            let net = price - surcharge;
            let load = if net > self.sensitivity { 1.0 - (self.sensitivity / net).sqrt() } else { start };
            if load < end {
                best = load.max(start);
                break;
            }
            start = end;
            surcharge += further;
        }
        self.cost(best * self.capacity) - price * best * self.capacity
    }

    /// How far the load is above the ceiling, negative below.
    pub(super) fn excess(&self, work: f64) -> f64 {
        work / self.capacity - self.ceiling
    }
}

impl Ramp {
    fn height(&self, load: f64) -> f64 {
        self.multiplier + (load - self.load) / self.width
    }

    /// Moves the multiplier to the height. A ramp whose multiplier does not settle becomes steeper.
    fn update(&mut self, load: f64) {
        let height = self.height(load).clamp(0.0, 1.0);
        let moved = (height - self.multiplier).abs();
        if moved > SETTLING * self.moved && self.moved > 0.0 {
            self.width = (self.width * STEEPER).max(self.least_width);
        }
        self.multiplier = height;
        self.moved = moved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::problem::Kink;

    fn pool() -> Pool {
        let kinks = vec![Kink { load: 0.5, surcharge: 20.0 }, Kink { load: 0.7, surcharge: 40.0 }];
        let service = ServicePools { capacity: vec![100.0], sensitivity: 3.0, kinks, error: 0.0 };
        Pool::new(&service, 100.0, (0.9, 50.0))
    }

    #[test]
    fn least_cost_at_price_equals_minimum_found_by_scan() {
        let pool = pool();
        for price in [0.0, 2.0, 3.5, 12.0, 25.0, 32.0, 50.0, 80.0, 120.0, 1e4] {
            let at = |step: u32| f64::from(step) / 1e4 * 90.0;
            let scan = (0..=10_000).map(|step| pool.cost(at(step)) - price * at(step));
            let least = scan.fold(f64::INFINITY, f64::min);
            let found = pool.least_at(price);
            assert!(
                found <= least + 1e-9 && least - found < 1e-3 * (1.0 + least.abs()),
                "{price}: {found} {least}"
            );
        }
    }

    #[test]
    fn pool_cost_slope_equals_finite_difference_away_from_kinks() {
        let mut pool = pool();
        // At its upper end a ramp is the whole surcharge.
        pool.set_multipliers(&[0.0, 0.0, 0.0]);
        for work in [5.0, 30.0, 45.0] {
            let slope = pool.slope(work);
            let difference = (pool.cost(work + 1e-4) - pool.cost(work - 1e-4)) / 2e-4;
            assert!((slope.price - difference).abs() < 1e-5 * difference, "{work}: {slope:?} {difference}");
        }
    }
}
