//! Types that only the proxy uses: no part of the public API.

pub use crate::{
    discovery::{RouteBackend, RouteBackendIndex},
    dispatch::{ConnectResult, FastCall, SentRequest, SlowCall},
    event_loops::set_event_loop,
    observe::CallInfo,
    response_body::{BodyEnd, BodyObserver},
    service::exported_service::{ExportedEndpoint, ExportedService},
    transport::{ConnectionOwner, EndpointConnection},
};
pub use fairmesh_router::{EndpointStats, ServiceNumbers};
