//! Requests for another protocol, which the program carries on over its connection.

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::{
    body::Incoming,
    upgrade::{self, OnUpgrade},
};
use hyper_util::rt::TokioIo;

use crate::{
    forward::{error_response, hop_by_hop},
    inbound::body::ResponseBody,
    tunnel::{
        copy::BidirectionalCopy,
        upgrade::{set_upgrade_headers, upgrade_protocol},
    },
};

/// A request of a caller for another protocol.
#[derive(Debug)]
pub(super) struct InboundUpgrade {
    protocol: HeaderValue,
    caller: OnUpgrade,
}

impl InboundUpgrade {
    /// Removes the upgrade from a request; `None` if it has none that can be forwarded.
    pub(super) fn take(request: &mut Request<Incoming>) -> Option<Self> {
        if !fairmesh_http::h1::requests_upgrade(request.headers()) {
            return None;
        }
        let protocol = upgrade_protocol(request.headers())?.clone();
        Some(Self { protocol, caller: upgrade::on(request) })
    }

    /// Requests the same upgrade from the program.
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        set_upgrade_headers(headers, self.protocol.clone());
    }

    /// The response to a caller whose program switched protocols. The tunnel begins once it is sent.
    pub(super) fn start(this: Option<Self>, mut response: Response<Incoming>) -> Response<ResponseBody> {
        let protocol = response.headers().get(header::UPGRADE).cloned();
        hop_by_hop::strip_response(response.headers_mut());
        let (Some(Self { caller, .. }), Some(protocol)) = (this, protocol) else {
            let message = "the program switched protocols unasked, or without naming one\n".to_owned();
            return error_response::plain_text(StatusCode::BAD_GATEWAY, message).map(ResponseBody::Own);
        };
        set_upgrade_headers(response.headers_mut(), protocol);
        tokio::spawn(carry(caller, upgrade::on(&mut response)));
        response.map(ResponseBody::Program)
    }
}

/// Copies bytes between a caller and the program until both have closed, or one fails.
async fn carry(caller: OnUpgrade, program: OnUpgrade) {
    let ended = match tokio::try_join!(caller, program) {
        Ok((caller, program)) => {
            let copy = BidirectionalCopy::new(TokioIo::new(caller), TokioIo::new(program));
            copy.await.map_err(fairmesh_calls::BoxError::from)
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an upgraded connection ended early");
    }
}
