use std::time::Duration;

use crate::{Invalid, write_duration};

/// Timeouts of a call. `docs/proxy-http.md` has the table of all timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Maximum duration of the whole call to the end of the response, including attempts and waits. If `None`, only
    /// idle timeouts bound the call. The caller's own deadline may be shorter.
    pub total: Option<Duration>,
    /// Maximum time from the end of the request to the response headers; `None` means the default of the call's
    /// [`CallKind`].
    pub response_header: Option<Duration>,
    /// Maximum time without progress in the middle of a request or response; `None` means the default of the call's
    /// [`CallKind`].
    pub idle: Option<Duration>,
}

/// The kind of a call, which determines its default timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A call with a deadline from the caller or the policy. It may be idle until the deadline.
    Bounded,
    /// A gRPC call or an event stream, which is idle between events.
    Stream,
    /// Any other call.
    Other,
}

impl Timeouts {
    /// Default timeout for response headers: longer than a long poll of one minute, which is the limit of most
    /// proxies.
    pub const RESPONSE_HEADER: Duration = Duration::from_secs(90);
    /// The default idle timeout in the middle of a body.
    pub const IDLE: Duration = Duration::from_secs(15);
    /// Default of both timeouts for streams: the usual idle timeout of tunnels.
    pub const STREAM: Duration = Duration::from_secs(3600);

    /// These timeouts, with missing values taken from `others`.
    #[inline]
    #[must_use]
    pub fn or(&self, others: &Self) -> Self {
        Self {
            total: self.total.or(others.total),
            response_header: self.response_header.or(others.response_header),
            idle: self.idle.or(others.idle),
        }
    }

    /// Timeout for the response headers, counted from the end of the request; `None` if only the call's deadline
    /// bounds them.
    #[inline]
    pub fn response_header_timeout(&self, kind: CallKind) -> Option<Duration> {
        self.response_header.or(match kind {
            CallKind::Bounded => None,
            CallKind::Stream => Some(Self::STREAM),
            CallKind::Other => Some(Self::RESPONSE_HEADER),
        })
    }

    /// Idle timeout in the middle of a body; `None` if only the call's deadline bounds it.
    #[inline]
    pub fn idle_timeout(&self, kind: CallKind) -> Option<Duration> {
        self.idle.or(match kind {
            CallKind::Bounded => None,
            CallKind::Stream => Some(Self::STREAM),
            CallKind::Other => Some(Self::IDLE),
        })
    }

    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        let fields = [
            ("timeout", self.total),
            ("responseHeaderTimeout", self.response_header),
            ("idleTimeout", self.idle),
        ];
        fields.into_iter().try_for_each(|(field, time)| match time {
            Some(time) if time < Duration::from_millis(1) => {
                let problem = format!("{} is out of range", write_duration(time));
                Err(Invalid::new(field, problem, "write 1ms or more; leave it out for the default"))
            }
            _ => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_timeouts_always_apply_and_default_ones_only_without_deadline() {
        let none = Timeouts::default();
        assert_eq!(none.response_header_timeout(CallKind::Other), Some(Timeouts::RESPONSE_HEADER));
        assert_eq!(none.idle_timeout(CallKind::Other), Some(Timeouts::IDLE));
        assert_eq!(none.idle_timeout(CallKind::Stream), Some(Timeouts::STREAM));
        assert_eq!(
            (none.response_header_timeout(CallKind::Bounded), none.idle_timeout(CallKind::Bounded)),
            (None, None)
        );
        let one = Some(Duration::from_secs(1));
        let route = Timeouts { idle: one, ..none };
        let written = route.or(&Timeouts { idle: None, response_header: one, total: one });
        for kind in [CallKind::Other, CallKind::Stream, CallKind::Bounded] {
            assert_eq!((written.response_header_timeout(kind), written.idle_timeout(kind)), (one, one));
        }
    }
}
