use fairmesh_listen::{QueuePlace, RequestGuard, WaitRefused};
use http::Extensions;
use prost::Message;
use tonic::{Request, Status};

/// Limits how many handlers wait after their request is complete, and the memory that they hold. Must be taken from
/// the request before its message is removed.
#[derive(Clone, Debug)]
pub struct Waits {
    guard: Option<RequestGuard>,
    bytes: usize,
}

impl Waits {
    /// Limits for a gRPC call, which holds its message while it waits.
    pub fn of<T: Message>(request: &Request<T>) -> Self {
        Self { guard: request.extensions().get().cloned(), bytes: request.get_ref().encoded_len() }
    }

    /// Limits for an HTTP request, which counts with the minimum memory.
    pub fn of_http(extensions: &Extensions) -> Self {
        Self { guard: extensions.get().cloned(), bytes: 0 }
    }

    /// Waits until the peer has read enough earlier responses to receive another one. For handlers that wait in large
    /// numbers for one event and would all respond at once.
    pub async fn room(&self) {
        if let Some(guard) = &self.guard {
            guard.room().await;
        }
    }

    /// Runs a handler that may wait, and that may be dropped at any await point. Requests on connections without a
    /// guard wait without limits.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if too many requests wait.
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Result<T, Status> {
        match &self.guard {
            None => Ok(handler.await),
            Some(guard) => {
                let waited = guard.wait(self.bytes, handler).await;
                waited.map_err(exhausted)
            }
        }
    }

    /// Counts the request as queued on its connection, until the result is dropped.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if `max` requests are queued already.
    pub(crate) fn queue(&self, max: u32) -> Result<Option<QueuePlace>, Status> {
        self.guard.as_ref().map(|guard| guard.queue(max)).transpose().map_err(exhausted)
    }
}

fn exhausted(refused: WaitRefused) -> Status {
    Status::resource_exhausted(refused.to_string())
}
