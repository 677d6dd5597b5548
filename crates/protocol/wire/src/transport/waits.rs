use fairmesh_listen::{QueuePlace, RequestGuard, WaitRefused};
use http::Extensions;
use prost::Message;
use tonic::{Request, Status};

/// Bounds the waits of a handler after its request is complete: their number, and the memory that they hold. Taken from the
/// request before its message.
#[derive(Clone, Debug)]
pub struct Waits {
    guard: Option<RequestGuard>,
    bytes: usize,
}

impl Waits {
    /// For a call, which holds its message while it waits.
    pub fn of<T: Message>(request: &Request<T>) -> Self {
        Self { guard: request.extensions().get().cloned(), bytes: request.get_ref().encoded_len() }
    }

    /// For an HTTP request, which holds the minimum.
    pub fn of_http(extensions: &Extensions) -> Self {
        Self { guard: extensions.get().cloned(), bytes: 0 }
    }

    /// Waits until the peer has read enough of earlier responses for another one. For handlers of which many wait for the same
    /// event, and would respond at the same time.
    pub async fn room(&self) {
        if let Some(guard) = &self.guard {
            guard.room().await;
        }
    }

    /// Runs a handler that may wait, and may be dropped at any await. Requests on connections without a guard wait unbounded.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` when too many wait.
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Result<T, Status> {
        match &self.guard {
            None => Ok(handler.await),
            Some(guard) => {
                let waited = guard.wait(self.bytes, handler).await;
                waited.map_err(exhausted)
            }
        }
    }

    /// Counts the request among those of its connection that queue, until the result is dropped.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` when `max` of them queue already.
    pub(crate) fn queue(&self, max: u32) -> Result<Option<QueuePlace>, Status> {
        self.guard.as_ref().map(|guard| guard.queue(max)).transpose().map_err(exhausted)
    }
}

fn exhausted(refused: WaitRefused) -> Status {
    Status::resource_exhausted(refused.to_string())
}
