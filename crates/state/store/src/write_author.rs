//! The author and reason of a task's writes, for the audit log.
//!
//! The author is a task-local value. A parameter of each function between a handler and the store was rejected: every
//! function would pass on a value that only the log reads.

use std::sync::Arc;

tokio::task_local! {
    static AUTHOR: Option<Arc<str>>;
    static MESSAGE: Arc<str>;
}

/// Returns the author of the current task; `None` if the process writes on its own behalf.
pub fn current() -> Option<Arc<str>> {
    AUTHOR.try_with(Clone::clone).ok().flatten()
}

/// Runs a future on behalf of an author. Tasks spawned by the future do not inherit the author.
pub async fn scope<F: Future>(author: Option<Arc<str>>, future: F) -> F::Output {
    AUTHOR.scope(author, future).await
}

/// Returns the reason for the current task's writes, if given.
pub fn message() -> Option<Arc<str>> {
    MESSAGE.try_with(Clone::clone).ok().filter(|message| !message.is_empty())
}

/// Runs a future with `message` as the reason for its writes.
pub async fn saying<F: Future>(message: Arc<str>, future: F) -> F::Output {
    MESSAGE.scope(message, future).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn write_author_is_task_local_and_passed_explicitly() {
        assert_eq!(current(), None);
        let seen = scope(Some("alice".into()), async {
            let (here, author) = (current(), current());
            let there = tokio::spawn(scope(author, async { current() })).await.unwrap();
            let lost = tokio::spawn(async { current() }).await.unwrap();
            (here, there, lost)
        });
        assert_eq!(seen.await, (Some("alice".into()), Some("alice".into()), None));
    }
}
