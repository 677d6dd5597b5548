//! Which part of a zone's calls stays in the zone: its part of the power against its part of the demand.
//!
//! Calls of callers without a zone, and calls of other regions, are spread by power, so that they load all zones alike and
//! leave each the same part of its power. So only the calls that zones divide among themselves count. Envoy's zone aware
//! routing divides in the same way, by counts of hosts at each caller; here the planner sees demand and power.

use crate::{MIN_SHARE, WHOLE};

/// How far a zone that keeps its calls may be above the mean utilisation: what stays is cheaper and fails with its zone.
const HEADROOM: f64 = 1.05;
/// Part of a new rate in the smoothed one: shares follow within a few rounds, and not the noise of one.
const SMOOTHING: f64 = 0.3;
/// The change of a share, in ten-thousandths, from which on shares are replaced.
const HYSTERESIS: u32 = 100;

/// The zones of one service in one region. Zones are positions in a list of the caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ZoneState {
    /// Smoothed calls per second, by zone.
    demand: Vec<f64>,
    shares: Vec<Vec<u32>>,
}

impl ZoneState {
    /// Shares by zone of the caller, then of the server, in ten-thousandths: empty for zones without calls. `demand` is in
    /// calls per second, `power` that of serving endpoints.
    ///
    /// # Panics
    /// If the lists differ in length.
    pub fn plan(&mut self, demand: &[f64], power: &[f64]) -> &[Vec<u32>] {
        assert_eq!(demand.len(), power.len(), "one entry for each zone");
        let usable = |rate: &f64| if rate.is_finite() { rate.max(0.0) } else { 0.0 };
        let demand: Vec<f64> = demand.iter().map(usable).collect();
        if self.demand.len() == demand.len() {
            for (smooth, now) in self.demand.iter_mut().zip(&demand) {
                *smooth += SMOOTHING * (now - *smooth);
            }
        } else {
            *self = Self { demand, shares: Vec::new() };
        }
        let planned = divide(&self.demand, &power.iter().map(usable).collect::<Vec<_>>());
        if !is_close(&self.shares, &planned) {
            self.shares = planned;
        }
        &self.shares
    }
}

/// What stays is bounded by the fair part of a zone with [`HEADROOM`]; the excess goes to the others by what their own
/// calls leave of their fair parts.
fn divide(demand: &[f64], power: &[f64]) -> Vec<Vec<u32>> {
    let (calls, whole): (f64, f64) = (demand.iter().sum(), power.iter().sum());
    let fair: Vec<f64> = power.iter().map(|power| calls * power / whole.max(f64::MIN_POSITIVE)).collect();
    let free: Vec<f64> = fair.iter().zip(demand).map(|(fair, calls)| (fair - calls).max(0.0)).collect();
    let row = |zone: usize| {
        if demand[zone] <= 0.0 || whole <= 0.0 {
            return Vec::new();
        }
        let stays = (HEADROOM * fair[zone] / demand[zone]).min(1.0);
        let others: f64 = free.iter().sum();
        let share = |other: usize| match other == zone {
            true => stays,
            false if others > 0.0 => (1.0 - stays) * free[other] / others,
            false => 0.0,
        };
        round(&(0..demand.len()).map(share).collect::<Vec<_>>(), zone)
    };
    (0..demand.len()).map(row).collect()
}

/// Shares below the least one go to the zone itself, as what rounding leaves does; or to the greatest, where it has none.
fn round(shares: &[f64], home: usize) -> Vec<u32> {
    let part = |share: &f64| (share * f64::from(WHOLE)) as u32;
    let mut rounded: Vec<u32> =
        shares.iter().map(part).map(|part| if part < MIN_SHARE { 0 } else { part }).collect();
    let rest = WHOLE.saturating_sub(rounded.iter().sum());
    let greatest = (0..rounded.len()).max_by_key(|at| rounded[*at]).unwrap_or(home);
    let to = if rounded[home] > 0 { home } else { greatest };
    rounded[to] += rest;
    rounded
}

fn is_close(old: &[Vec<u32>], new: &[Vec<u32>]) -> bool {
    let same = |(old, new): (&Vec<u32>, &Vec<u32>)| {
        old.len() == new.len()
            && old
                .iter()
                .zip(new)
                .all(|(old, new)| old.abs_diff(*new) < HYSTERESIS && (*old == 0) == (*new == 0))
    };
    old.len() == new.len() && old.iter().zip(new).all(same)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zone_keeps_calls_within_its_power_and_excess_goes_to_free_zones() {
        let mut zones = ZoneState::default();
        let shares = zones.plan(&[60.0, 30.0, 10.0], &[1.0, 1.0, 1.0]);
        assert_eq!(shares, [vec![5835, 520, 3645], vec![0, WHOLE, 0], vec![0, 0, WHOLE]]);
        let shares = ZoneState::default().plan(&[50.0, 0.0], &[0.0, 1.0]).to_vec();
        assert_eq!(
            shares,
            [vec![0, WHOLE], vec![]],
            "no power in the zone of the callers, no calls of the other"
        );
    }

    #[test]
    fn small_demand_changes_leave_zone_shares_unchanged() {
        let mut zones = ZoneState::default();
        let before = zones.plan(&[60.0, 40.0], &[1.0, 1.0]).to_vec();
        assert_eq!(zones.plan(&[61.0, 40.0], &[1.0, 1.0]), before);
        for _ in 0..10 {
            zones.plan(&[80.0, 20.0], &[1.0, 1.0]);
        }
        assert!(zones.plan(&[80.0, 20.0], &[1.0, 1.0])[0][0] < before[0][0]);
        assert_eq!(
            zones.plan(&[f64::NAN, -1.0], &[1.0, f64::INFINITY]).len(),
            2,
            "impossible numbers count as none"
        );
    }

    proptest! {
        #[test]
        fn zones_keep_own_calls_up_to_headroom_and_none_exceeds_it(
            zones in proptest::collection::vec((0.0..1_000.0_f64, 0.1..100.0_f64), 1..8),
        ) {
            let (demand, power): (Vec<f64>, Vec<f64>) = zones.into_iter().unzip();
            let shares = ZoneState::default().plan(&demand, &power).to_vec();
            let (calls, whole): (f64, f64) = (demand.iter().sum(), power.iter().sum());
            prop_assume!(calls > 1.0);
            let mut stays = 0.0;
            for zone in 0..demand.len() {
                prop_assert!(demand[zone] == 0.0 || shares[zone].iter().sum::<u32>() == WHOLE);
                let of = |from: usize| shares[from].get(zone).map_or(0.0, |share| f64::from(*share) / 1e4 * demand[from]);
                let fair = calls * power[zone] / whole;
                // Shares below 1 % stay where they come from, and rounding adds a little.
                prop_assert!((0..demand.len()).map(of).sum::<f64>() <= HEADROOM * fair + calls * 0.08);
                stays += of(zone);
            }
            let most: f64 = demand.iter().zip(&power).map(|(calls_, power)| calls_.min(1.1 * calls * power / whole)).sum();
            prop_assert!(stays >= 0.95 * most - calls * 0.01, "{stays} of at most {most}");
        }
    }
}
