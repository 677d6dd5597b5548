use fairmesh_listen::RequestGuard;
use http::Extensions;
use prost::Message;
use tonic::{Request, Status};

/// By what a handler may wait once all of its request is here, which bounds how many do and what they hold. To be taken from the
/// request before its message.
#[derive(Clone, Debug)]
pub struct Waits {
    guard: Option<RequestGuard>,
    bytes: usize,
}

impl Waits {
    /// Of a call, which holds its message as it waits.
    pub fn of<T: Message>(request: &Request<T>) -> Self {
        Self { guard: request.extensions().get().cloned(), bytes: request.get_ref().encoded_len() }
    }

    /// Of a request of HTTP, which holds as little as waiting costs.
    pub fn of_http(extensions: &Extensions) -> Self {
        Self { guard: extensions.get().cloned(), bytes: 0 }
    }

    /// Waits until the responses before, on the same connection, are taken as far as the next one needs it: to be called where many
    /// wait for the same, and all of them would be responded to at once.
    pub async fn room(&self) {
        if let Some(guard) = &self.guard {
            guard.room().await;
        }
    }

    /// Runs what may wait and can be dropped meanwhile without harm. What did not come over a guarded connection waits unbounded.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` when too many wait.
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Result<T, Status> {
        match &self.guard {
            None => Ok(handler.await),
            Some(guard) => {
                let waited = guard.wait(self.bytes, handler).await;
                waited.map_err(|refused| Status::resource_exhausted(refused.to_string()))
            }
        }
    }
}
