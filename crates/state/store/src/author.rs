//! The author and reason of a task's writes, for the audit log.
//!
//! The author travels with the task. A parameter of each function between a handler and the store was rejected: all would
//! pass on a value that only the log reads.

use std::sync::Arc;

tokio::task_local! {
    static AUTHOR: Option<Arc<str>>;
    static MESSAGE: Arc<str>;
}

/// The author of the present task; `None` if the process writes on its own behalf.
pub fn current() -> Option<Arc<str>> {
    AUTHOR.try_with(Clone::clone).ok().flatten()
}

/// Runs a future on behalf of an author. Tasks that it spawns need an author of their own.
pub async fn scope<F: Future>(author: Option<Arc<str>>, future: F) -> F::Output {
    AUTHOR.scope(author, future).await
}

/// The reason of the present task's writes, if given.
pub fn message() -> Option<Arc<str>> {
    MESSAGE.try_with(Clone::clone).ok().filter(|message| !message.is_empty())
}

/// Runs a future whose writes have this reason.
pub async fn saying<F: Future>(message: Arc<str>, future: F) -> F::Output {
    MESSAGE.scope(message, future).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn author_belongs_to_its_task_and_is_passed_explicitly() {
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
