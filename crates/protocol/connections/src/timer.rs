use std::{
    cell::RefCell,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::error::SendError;
use crate::event_loops;

/// Maximum number of timers that a thread pools for its next calls.
const MAX_POOLED: usize = 64;

thread_local! {
    /// Timers for reuse. Used only on threads that run one event loop for life, because a timer expires on the loop
    /// on which it was created.
    static TIMERS: RefCell<Vec<DeadlineTimer>> = const { RefCell::new(Vec::new()) };
}

/// Timer for the deadlines of calls. It stays with the connection and is reset only if it would expire too late:
/// almost every call ends long before its deadline, and setting and cancelling a timer for each call would cost two
/// locks. A timer set for an earlier call may wake a later call once, spuriously.
#[derive(Debug, Default)]
pub(super) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

/// A timer from this event loop's pool. Dropping it returns it to the pool.
pub struct PooledTimer(DeadlineTimer);

impl DeadlineTimer {
    /// Whether `until` has passed. If not, the task is woken no later than that.
    pub(super) fn has_expired(&mut self, until: Instant, context: &mut Context<'_>) -> bool {
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

    /// Returns the polled result, or [`SendError::TimedOut`] if the result is pending and `until` has passed.
    pub(super) fn bound<T>(
        &mut self,
        polled: Poll<Result<T, SendError>>,
        until: Instant,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, SendError>> {
        match polled.is_pending() && self.has_expired(until, context) {
            true => Poll::Ready(Err(SendError::TimedOut)),
            false => polled,
        }
    }
}

impl PooledTimer {
    /// Takes a timer from this event loop's pool, or creates one.
    pub fn take() -> Self {
        Self(TIMERS.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// Whether `until` has passed. If not, the task is woken no later than that.
    pub fn has_expired(&mut self, until: Instant, context: &mut Context<'_>) -> bool {
        self.0.has_expired(until, context)
    }

    pub(super) fn timer(&mut self) -> &mut DeadlineTimer {
        &mut self.0
    }
}

impl Drop for PooledTimer {
    fn drop(&mut self) {
        if !event_loops::is_event_loop_thread() || self.0.0.is_none() {
            return;
        }
        let timer = mem::take(&mut self.0);
        // Fails only while the thread is ending.
        let _ = TIMERS.try_with(|timers| {
            let mut timers = timers.borrow_mut();
            if timers.len() < MAX_POOLED {
                timers.push(timer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    async fn expires(timer: &mut DeadlineTimer, until: Instant) -> Duration {
        let begun = Instant::now();
        poll_fn(|context| if timer.has_expired(until, context) { Poll::Ready(()) } else { Poll::Pending })
            .await;
        begun.elapsed()
    }

    /// Timers expire up to a millisecond late.
    fn is_about(took: Duration, ms: u64) -> bool {
        let ms = Duration::from_millis(ms);
        ms <= took && took <= ms + Duration::from_millis(1)
    }

    #[tokio::test(start_paused = true)]
    async fn reset_timer_expires_at_its_new_time() {
        let mut timer = DeadlineTimer::default();
        let now = Instant::now();
        let in_ms = |ms| now + Duration::from_millis(ms);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(!timer.has_expired(in_ms(50), &mut context));
        assert!(is_about(expires(&mut timer, in_ms(200)).await, 200), "it was set to an earlier time");
        assert!(!timer.has_expired(in_ms(1000), &mut context));
        assert!(is_about(expires(&mut timer, in_ms(300)).await, 100), "it was set to a later time");
        assert!(timer.has_expired(now, &mut context), "a time that has passed");
    }

    async fn runs_out(ms: u64) {
        let begun = Instant::now();
        let until = begun + Duration::from_millis(ms);
        let mut timer = PooledTimer::take();
        poll_fn(|context| if timer.has_expired(until, context) { Poll::Ready(()) } else { Poll::Pending })
            .await;
        assert!(is_about(begun.elapsed(), ms), "{:?}", begun.elapsed());
    }

    /// Makes calls one after another. Returns the number of timers that the thread then keeps.
    fn calls() -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            for ms in [200, 50, 300] {
                runs_out(ms).await;
            }
            let until = Instant::now() + Duration::from_secs(1);
            assert!(
                !PooledTimer::take().has_expired(until, &mut Context::from_waker(std::task::Waker::noop()))
            );
            for ms in [1500, 20] {
                runs_out(ms).await;
            }
        });
        TIMERS.with_borrow(Vec::len)
    }

    #[test]
    fn timers_are_reused_on_event_loops_and_not_on_other_threads() {
        assert_eq!(calls(), 0);
        let event_loop = std::thread::spawn(|| {
            crate::event_loops::set_event_loop(0);
            calls()
        });
        assert_eq!(event_loop.join().unwrap(), 1);
    }
}
