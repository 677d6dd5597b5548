use std::ops::AddAssign;

/// Two areas under curves over time, and the containers below them. They add up over services, slices and minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Container-minutes.
    pub containers: u64,
    /// Their usage, in millicore-minutes.
    pub used: u64,
    /// Their hypothetical usage if each used the p99, in millicore-minutes.
    pub peak: u64,
}

impl Area {
    /// Capacity kept free because of the hottest containers, in millicore-minutes.
    ///
    /// Negative only if so few of at least a hundred containers (under 1 %) used so much that the mean exceeds the
    /// p99. It is not clamped at zero: clamped values would not add up.
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

/// `a - b`; sums of the largest fleets over years stay far below the bounds.
pub(crate) fn difference(a: u64, b: u64) -> i64 {
    let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
    signed(a).saturating_sub(signed(b))
}
