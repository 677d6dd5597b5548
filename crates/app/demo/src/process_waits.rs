//! Waits for processes of the demo, which respond late on a machine without free cores.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep};

use super::error::DemoError;

/// Time limit of a wait.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Interval of messages about a wait.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Something that the demo waits for, such as `the control plane`.
pub(super) struct Wait<'a> {
    subject: &'a str,
    say: &'a dyn Fn(&str),
    begun: Instant,
    next_message: Instant,
}

impl<'a> Wait<'a> {
    /// Begins to wait. `say` prints progress.
    pub(super) fn new(subject: &'a str, say: &'a dyn Fn(&str)) -> Self {
        let begun = Instant::now();
        Self { subject, say, begun, next_message: begun + MESSAGE_INTERVAL }
    }

    /// Waits between two attempts, and prints what is waited for every few seconds.
    ///
    /// # Errors
    /// After [`PATIENCE`], with the reason of the last attempt.
    pub(super) async fn pause(&mut self, reason: &dyn fmt::Display) -> Result<(), DemoError> {
        let (subject, waited) = (self.subject, self.begun.elapsed());
        if waited >= PATIENCE {
            let limit = PATIENCE.as_secs();
            return Err(DemoError::Fleet(format!("{subject} is not up after {limit} s: {reason}")));
        }
        if Instant::now() >= self.next_message {
            self.next_message = Instant::now() + MESSAGE_INTERVAL;
            let (waited, limit) = (waited.as_secs(), PATIENCE.as_secs());
            (self.say)(&format!("still waiting for {subject}, {waited} s of at most {limit} s: {reason}"));
        }
        sleep(RETRY_INTERVAL).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_reports_progress_and_ends_with_last_reason() {
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let mut wait = Wait::new("the control plane", &say);
        // Each attempt takes as long as a connection may.
        let ended = loop {
            sleep(Duration::from_secs(2)).await;
            if let Err(error) = wait.pause(&"no response").await {
                break error.to_string();
            }
        };
        assert_eq!(ended, "the control plane is not up after 120 s: no response");
        let said = said.into_inner();
        assert_eq!(said[0], "still waiting for the control plane, 6 s of at most 120 s: no response");
        assert!((15..=24).contains(&said.len()), "{said:?}");
    }
}
