use std::ops::AddAssign;

/// Usage and peak of containers, integrated over time. Areas add up over services, slices and minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Container-minutes.
    pub containers: u64,
    /// Usage of the containers, in millicore-minutes.
    pub used: u64,
    /// Usage if every container used the p99, in millicore-minutes.
    pub peak: u64,
}

impl Area {
    /// Capacity kept free because of the hottest containers, in millicore-minutes.
    ///
    /// Negative only if the mean exceeds the p99: among at least a hundred containers, fewer than 1 % use very much.
    /// The value is not clamped at zero, since clamped values would not add up.
    pub fn wasted(&self) -> i64 {
        difference(self.peak, self.used)
    }

    /// 1 + wasted / used, in thousandths; `None` if nothing was used.
    pub fn index(&self) -> Option<u64> {
        let index = u128::from(self.peak) * 1000 / u128::from(self.used.max(1));
        (self.used > 0).then(|| u64::try_from(index).unwrap_or(u64::MAX))
    }
}

impl AddAssign for Area {
    fn add_assign(&mut self, other: Self) {
        self.containers = self.containers.saturating_add(other.containers);
        self.used = self.used.saturating_add(other.used);
        self.peak = self.peak.saturating_add(other.peak);
    }
}

/// `a - b`. Sums of the largest fleets over years stay far below the limits of `i64`.
pub(crate) fn difference(a: u64, b: u64) -> i64 {
    let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
    signed(a).saturating_sub(signed(b))
}
