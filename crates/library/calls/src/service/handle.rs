use std::{
    borrow::Cow,
    str::FromStr,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use fairmesh_connections::EndpointPool;
use fairmesh_headers::{Deadline, IDEMPOTENT, KEY, ROLE, SpanContext, has_call_options, read_deadline};
use fairmesh_model::{Invalid, ServiceName};
use http::{HeaderMap, HeaderName, HeaderValue, request::Parts, uri::Authority};

use crate::{
    call::{CallContext, Principal},
    discovery::Subscription,
    fault::{Fault, FaultKind},
    mesh::state::MeshState,
    observe::{ServiceCounters, count},
};

/// The service, options and default headers of a handle.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) mesh: Arc<MeshState>,
    pub(crate) subscription: Arc<Subscription<Arc<EndpointPool>>>,
    /// Counters of this handle and its clones.
    pub(crate) counters: Arc<ServiceCounters>,
    pub(crate) context: CallContext,
    pub(crate) deadline: Option<Deadline>,
    /// Whether responses that carry a fault are returned unchanged.
    pub(crate) keeps_fault_responses: bool,
    pub(crate) default_headers: DefaultHeaders,
}

/// Headers that a handle adds to requests, built once.
#[derive(Clone)]
pub(crate) struct DefaultHeaders {
    /// Host used for requests that name none.
    pub(crate) authority: Authority,
    pub(crate) key: Option<HeaderValue>,
    pub(crate) role: Option<HeaderValue>,
    /// The program's current span, used as parent for requests that name none.
    pub(crate) parent: Option<SpanContext>,
}

/// The options of one call.
pub(crate) struct CallOptions<'a> {
    pub(crate) context: Cow<'a, CallContext>,
    /// Time left until the earliest deadline, excluding timeouts.
    pub(crate) limit: Option<Duration>,
}

impl Handle {
    pub(crate) fn new(mesh: Arc<MeshState>, subscription: Arc<Subscription<Arc<EndpointPool>>>) -> Self {
        let authority = service_authority(subscription.name());
        let default_headers = DefaultHeaders { authority, key: None, role: None, parent: None };
        Self {
            mesh,
            subscription,
            counters: Arc::default(),
            context: CallContext::default(),
            deadline: None,
            keeps_fault_responses: false,
            default_headers,
        }
    }

    /// Increments a counter of the service and of the mesh.
    #[inline]
    pub(crate) fn count(&self, counter: impl Fn(&ServiceCounters) -> &AtomicU64) {
        count(counter(&self.counters));
        count(counter(&self.mesh.counters.services));
    }

    /// Returns the combined options of the handle and the request.
    pub(crate) fn call_options(&self, parts: &Parts) -> Result<CallOptions<'_>, Fault> {
        let deadlines = [self.deadline, parts.extensions.get().copied()];
        let left = deadlines.into_iter().flatten().min().map(Deadline::left);
        let principal = parts.extensions.get::<Arc<Principal>>();
        if !has_call_options(&parts.headers) && principal.is_none() {
            return Ok(CallOptions { context: Cow::Borrowed(&self.context), limit: left });
        }
        let limit = [left, read_deadline(&parts.headers)].into_iter().flatten().min();
        let mut context = self.context(&parts.headers)?;
        if let Some(principal) = principal {
            context.to_mut().principal = Some(Arc::clone(principal));
        }
        Ok(CallOptions { context, limit })
    }

    /// Returns the combined options of the handle and the request's headers; the handle's options take precedence.
    pub(crate) fn context(&self, headers: &HeaderMap) -> Result<Cow<'_, CallContext>, Fault> {
        let mut context = Cow::Borrowed(&self.context);
        if self.context.key.is_none()
            && let Some(key) = parsed(headers, &KEY)?
        {
            context.to_mut().key = Some(key);
        }
        if self.context.role.is_none()
            && let Some(role) = parsed(headers, &ROLE)?
        {
            context.to_mut().role = Some(role);
        }
        if !self.context.idempotent && headers.get(&IDEMPOTENT).is_some_and(|value| value == "true") {
            context.to_mut().idempotent = true;
        }
        Ok(context)
    }
}

/// The default host of requests to a service: `cart.shop`.
pub(crate) fn service_authority(name: &ServiceName) -> Authority {
    let ServiceName { tenant, service } = name;
    // Names contain only characters that hosts may contain, so the fallback is never used.
    format!("{service}.{tenant}").parse().unwrap_or(Authority::from_static("fairmesh"))
}

fn parsed<T: FromStr<Err = Invalid>>(headers: &HeaderMap, name: &HeaderName) -> Result<Option<T>, Fault> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().unwrap_or("(not text)");
    text.parse().map(Some).map_err(|problem: Invalid| {
        Fault::new(FaultKind::Invalid, format!("header {name}")).caused_by(problem)
    })
}
