//! Tasks of a running control plane.

use std::future::Future;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ControlError;

/// Tasks of a running control plane. A task that ends by itself returns an error.
pub(crate) type Tasks = JoinSet<Result<(), ControlError>>;

/// Spawns a task that ends by itself when the control plane stops.
pub(crate) fn spawn_stoppable(store_tasks: &mut Tasks, task: impl Future<Output = ()> + Send + 'static) {
    store_tasks.spawn(async move {
        task.await;
        Ok(())
    });
}

/// Spawns a task that may be cancelled at any await. It is cancelled once calls in flight no longer write.
pub(crate) fn spawn_cancellable(
    store_tasks: &mut Tasks,
    writes_ended: &CancellationToken,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let stop = writes_ended.clone();
    store_tasks.spawn(async move {
        stop.run_until_cancelled(task).await;
        Ok(())
    });
}

/// Waits for the first task that ends, and returns its result. A panic counts as an error.
pub(crate) async fn join_next(tasks: &mut Tasks) -> Result<(), ControlError> {
    match tasks.join_next().await {
        None => Ok(()),
        Some(Ok(stopped)) => stopped,
        Some(Err(panicked)) => Err(task_ended("a task of the control plane", panicked)),
    }
}

pub(crate) fn task_ended(part: &'static str, reason: impl ToString) -> ControlError {
    ControlError::Ended { part, reason: reason.to_string() }
}
