use http::{Method, Request, Uri, uri::PathAndQuery};

use super::Caller;

/// An accepted request, to be judged anew while the connection that it opened lives on.
#[derive(Clone, Debug)]
pub struct AcceptedCall {
    pub(super) caller: Option<Caller>,
    pub(super) method: Method,
    target: Uri,
}

impl AcceptedCall {
    /// The call of a request that the layer has accepted.
    pub fn of<B>(request: &Request<B>) -> Self {
        Self {
            caller: request.extensions().get().cloned(),
            method: request.method().clone(),
            target: request.uri().clone(),
        }
    }

    pub(super) fn path(&self) -> &str {
        self.target.path_and_query().map_or(self.target.path(), PathAndQuery::as_str)
    }
}
