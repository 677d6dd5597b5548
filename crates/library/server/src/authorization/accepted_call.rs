use std::{future::pending, net::IpAddr, sync::Arc};

use fairmesh_headers::{AllSpellings, without_credentials};
use fairmesh_router::{AuthorizationRequest, RequestAttributes, UserToken};
use http::{HeaderMap, Method, Request, Uri, header, uri::PathAndQuery};
use tokio::time::{Instant, sleep_until};

use super::{Caller, caller};

/// An accepted request. It is authorized again for as long as the connection that it opened exists.
#[derive(Clone, Debug)]
pub struct AcceptedCall {
    pub(super) caller: Option<Caller>,
    method: Method,
    target: Uri,
    source: Option<IpAddr>,
    token: Option<Arc<UserToken>>,
    /// Expiry of the caller's token.
    ends: Option<Instant>,
    /// Headers of a request that switches protocols. Only such requests open a connection that must be authorized
    /// again.
    headers: HeaderMap,
}

impl AcceptedCall {
    /// Returns the call of a request that the layer has accepted.
    pub fn of<B>(request: &Request<B>) -> Self {
        let token = request.extensions().get::<Arc<UserToken>>().cloned();
        Self {
            caller: request.extensions().get().cloned(),
            method: request.method().clone(),
            target: request.uri().clone(),
            source: caller::source_of(request.extensions()),
            ends: token.as_ref().map(|token| Instant::now() + token.valid_for),
            token,
            headers: match request.headers().contains_key(header::UPGRADE) {
                true => without_credentials(request.headers()),
                false => HeaderMap::new(),
            },
        }
    }

    /// Resolves when the call's token expires; never without a token.
    pub(super) async fn ended(&self) {
        match self.ends {
            Some(ends) => sleep_until(ends).await,
            None => pending().await,
        }
    }

    /// Calls `judge` with the call as its argument, in the form of an authorization request.
    pub(super) fn judged<T>(&self, judge: impl FnOnce(&AuthorizationRequest<'_>) -> T) -> T {
        judge(&AuthorizationRequest {
            caller: self.caller.as_ref().map(Caller::verified),
            method: self.method.as_str(),
            path: self.target.path_and_query().map_or(self.target.path(), PathAndQuery::as_str),
            attributes: RequestAttributes {
                source: self.source,
                token: self.token.as_deref(),
                headers: &AllSpellings(&self.headers),
            },
        })
    }
}
