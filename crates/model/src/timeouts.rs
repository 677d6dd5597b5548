use std::time::Duration;

use crate::Invalid;

/// How long a call may take, and how long it may be silent. `docs/proxy.md` has the table of all timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// The whole call, attempts and waits included, to the end of the response; `None` bounds it by nothing but silence. The
    /// caller's own deadline may shorten it.
    pub total: Option<Duration>,
    /// From the end of the request to the headers of the response; `None` is the default of the call's [`Kind`].
    pub response_header: Option<Duration>,
    /// How long nothing may move in the middle of a request or a response; `None` is the default of the call's [`Kind`].
    pub idle: Option<Duration>,
}

/// Which defaults hold for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The caller or the policy gave it a deadline: it may be silent until then.
    Bounded,
    /// A gRPC call, or a stream of events: silent for as long as there is no event.
    Stream,
    /// Any other.
    Usual,
}

impl Timeouts {
    /// The default time to the response headers: above a long poll of a minute, which is how long most proxies let one wait.
    pub const RESPONSE_HEADER: Duration = Duration::from_secs(90);
    /// The default time for which nothing may move in the middle of a body.
    pub const IDLE: Duration = Duration::from_secs(15);
    /// The default of both for streams: as long as a tunnel may be quiet.
    pub const STREAM: Duration = Duration::from_secs(3600);

    /// These, and where they are silent, `others`.
    #[inline]
    #[must_use]
    pub fn or(&self, others: &Self) -> Self {
        Self {
            total: self.total.or(others.total),
            response_header: self.response_header.or(others.response_header),
            idle: self.idle.or(others.idle),
        }
    }

    /// How long the response headers may take from the end of the request; `None` for as long as the call may take.
    #[inline]
    pub fn to_response_header(&self, kind: Kind) -> Option<Duration> {
        self.response_header.or(match kind {
            Kind::Bounded => None,
            Kind::Stream => Some(Self::STREAM),
            Kind::Usual => Some(Self::RESPONSE_HEADER),
        })
    }

    /// How long nothing may move in the middle of a body; `None` for as long as the call may take.
    #[inline]
    pub fn of_silence(&self, kind: Kind) -> Option<Duration> {
        self.idle.or(match kind {
            Kind::Bounded => None,
            Kind::Stream => Some(Self::STREAM),
            Kind::Usual => Some(Self::IDLE),
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
                let problem = format!("{time:?} is out of range");
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
    fn what_is_written_counts_for_every_kind_and_defaults_for_calls_without_a_deadline() {
        let none = Timeouts::default();
        assert_eq!(none.to_response_header(Kind::Usual), Some(Timeouts::RESPONSE_HEADER));
        assert_eq!(none.of_silence(Kind::Usual), Some(Timeouts::IDLE));
        assert_eq!(none.of_silence(Kind::Stream), Some(Timeouts::STREAM));
        assert_eq!((none.to_response_header(Kind::Bounded), none.of_silence(Kind::Bounded)), (None, None));
        let one = Some(Duration::from_secs(1));
        let route = Timeouts { idle: one, ..none };
        let written = route.or(&Timeouts { idle: None, response_header: one, total: one });
        for kind in [Kind::Usual, Kind::Stream, Kind::Bounded] {
            assert_eq!((written.to_response_header(kind), written.of_silence(kind)), (one, one));
        }
    }
}
