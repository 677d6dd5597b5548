use std::{
    cell::RefCell,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::SendError;
use crate::cores;

/// Alarms that a thread keeps for its next calls.
const SPARE: usize = 64;

thread_local! {
    /// Only of threads that run one event loop for life: an alarm rings on the loop that it was made on.
    static ALARMS: RefCell<Vec<Alarm>> = const { RefCell::new(Vec::new()) };
}

/// Rings when a call's time is over. It stays with the connection and is set anew only where it would ring too late: nearly
/// every call ends long before, and setting a timer for each and taking it back costs two locks. One that was set for
/// an earlier call wakes a later one once, for nothing.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

/// An alarm that the next calls of this event loop get, whatever their connections.
pub(crate) struct Lent(Alarm);

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
        until: Instant,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, SendError>> {
        match polled.is_pending() && self.has_rung(until, context) {
            true => Poll::Ready(Err(SendError::OutOfTime)),
            false => polled,
        }
    }
}

impl Lent {
    pub(crate) fn take() -> Self {
        Self(ALARMS.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// As of [`Alarm`].
    pub(crate) fn has_rung(&mut self, until: Instant, context: &mut Context<'_>) -> bool {
        self.0.has_rung(until, context)
    }

    pub(super) fn alarm(&mut self) -> &mut Alarm {
        &mut self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !cores::runs_one() || self.0.0.is_none() {
            return;
        }
        let alarm = mem::take(&mut self.0);
        // Fails only where the thread ends.
        let _ = ALARMS.try_with(|alarms| {
            let mut alarms = alarms.borrow_mut();
            if alarms.len() < SPARE {
                alarms.push(alarm);
            }
        });
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

    async fn runs_out(ms: u64) {
        let begun = Instant::now();
        let until = begun + Duration::from_millis(ms);
        let mut alarm = Lent::take();
        poll_fn(|context| if alarm.has_rung(until, context) { Poll::Ready(()) } else { Poll::Pending }).await;
        assert!(is_about(begun.elapsed(), ms), "{:?}", begun.elapsed());
    }

    /// Makes calls one after another; how many alarms the thread keeps then.
    fn calls() -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            for ms in [200, 50, 300] {
                runs_out(ms).await;
            }
            let until = Instant::now() + Duration::from_secs(1);
            assert!(!Lent::take().has_rung(until, &mut Context::from_waker(std::task::Waker::noop())));
            for ms in [1500, 20] {
                runs_out(ms).await;
            }
        });
        ALARMS.with_borrow(Vec::len)
    }

    #[test]
    fn an_event_loop_lends_one_alarm_to_call_after_call_and_another_thread_keeps_none() {
        assert_eq!(calls(), 0);
        let on_core = std::thread::spawn(|| {
            crate::on_core(0);
            calls()
        });
        assert_eq!(on_core.join().unwrap(), 1);
    }
}
