use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::SendError;

/// Rings when a call's time is over. It stays with the connection and is set anew only where it would ring too late: nearly
/// every call ends long before, and setting a timer for each and taking it back costs two locks. One that was set for
/// an earlier call wakes a later one once, for nothing.
#[derive(Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Whether it is `until`; the task is woken then at the latest.
    pub(super) fn has_rung(&mut self, until: Instant, context: &mut Context<'_>) -> bool {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if sleep.deadline() > until {
            sleep.as_mut().reset(until);
        }
        while let Poll::Ready(()) = sleep.as_mut().poll(context) {
            if sleep.deadline() >= until {
                return true;
            }
            sleep.as_mut().reset(until);
        }
        false
    }

    /// What was polled, unless it is still waited for and it is `until`.
    pub(super) fn bound<T>(
        &mut self,
        polled: Poll<Result<T, SendError>>,
        until: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, SendError>> {
        match until {
            Some(until) if polled.is_pending() && self.has_rung(until, context) => {
                Poll::Ready(Err(SendError::OutOfTime))
            }
            _ => polled,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    async fn rings(alarm: &mut Alarm, until: Instant) -> Duration {
        let begun = Instant::now();
        poll_fn(|context| if alarm.has_rung(until, context) { Poll::Ready(()) } else { Poll::Pending }).await;
        begun.elapsed()
    }

    /// Timers ring up to a millisecond late.
    fn is_about(took: Duration, ms: u64) -> bool {
        let ms = Duration::from_millis(ms);
        ms <= took && took <= ms + Duration::from_millis(1)
    }

    #[tokio::test(start_paused = true)]
    async fn it_rings_for_each_call_in_time_whatever_it_was_set_to_before() {
        let mut alarm = Alarm::default();
        let now = Instant::now();
        let in_ms = |ms| now + Duration::from_millis(ms);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(!alarm.has_rung(in_ms(50), &mut context));
        assert!(is_about(rings(&mut alarm, in_ms(200)).await, 200), "it was set to an earlier time");
        assert!(!alarm.has_rung(in_ms(1000), &mut context));
        assert!(is_about(rings(&mut alarm, in_ms(300)).await, 100), "it was set to a later time");
        assert!(alarm.has_rung(now, &mut context), "a time that has passed");
    }
}
