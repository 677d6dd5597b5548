//! How fast a table moves to its target.

/// Proportional gain: the share of the remaining change that one round makes. The paper's published reactions fit 0.65.
const PROPORTIONAL: f64 = 0.65;
/// Integral gain, per second.
const INTEGRAL: f64 = 0.02;
/// Derivative gain, in seconds: a change that is growing is followed faster.
const DERIVATIVE: f64 = 0.1;
/// Bound of the integral, in shares times seconds.
const MAX_INTEGRAL: f64 = 10.0;
/// The least change, so that the last part of a change is not spread over many tables.
pub(crate) const MIN_CHANGE: f64 = 0.02;

/// A controller of the share that still has to move (ServiceRouter §3.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pid {
    integral: f64,
    last: f64,
}

impl Pid {
    /// The share to move now, of `error` that has to move, and at most `limit`.
    ///
    /// The integral grows only while the output is not bounded (anti-windup), so that a change that had to wait is not
    /// followed by a leap.
    pub(crate) fn step(&mut self, error: f64, seconds: f64, limit: f64) -> f64 {
        let slope = if seconds > 0.0 { (error - self.last) / seconds } else { 0.0 };
        self.last = error;
        let raw = PROPORTIONAL * error + INTEGRAL * self.integral + DERIVATIVE * slope;
        let bound = limit.max(MIN_CHANGE).min(error);
        if raw < bound {
            self.integral = (self.integral + error * seconds).min(MAX_INTEGRAL);
        }
        raw.max(MIN_CHANGE).min(bound)
    }

    /// Whether a change is under way.
    pub(crate) fn is_active(&self) -> bool {
        self.last > 0.0
    }

    /// Nothing has to move.
    pub(crate) fn rest(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_controller_completes_change_in_few_rounds_without_overshoot() {
        let (mut pid, mut left, mut rounds) = (Pid::default(), 0.3, 0);
        while left > 1e-9 {
            let moved = pid.step(left, 5.0, 1.0);
            assert!(moved > 0.0 && moved <= left, "{moved} of {left}");
            left -= moved;
            rounds += 1;
        }
        assert!(rounds <= 5, "{rounds}");
    }

    #[test]
    fn pid_integral_does_not_wind_up_at_limit() {
        let mut pid = Pid::default();
        for _ in 0..1000 {
            assert_eq!(pid.step(0.5, 5.0, 0.05), 0.05);
        }
        assert_eq!(pid.integral, 0.0);
        let moved = pid.step(0.1, 5.0, 1.0);
        assert!(moved < 0.1, "{moved}");
    }
}
