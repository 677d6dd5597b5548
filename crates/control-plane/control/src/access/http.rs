//! Checks requests over HTTP. In plaintext, callers have no identity: a role binding for `anonymous` permits
//! them, and user tokens are refused. Over TLS, user tokens and certificates of the mesh are accepted.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::{Body, Bytes, to_bytes},
    extract::{FromRequestParts as _, MatchedPath, Query, RawPathParams, Request, State},
    http::{HeaderMap, StatusCode, header::ORIGIN},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use fairmesh_model::{InstanceId, Invalid, ServiceName, Tenant};
use fairmesh_rib::access::{AccessControl, Caller, Need};
use fairmesh_store::write_author;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{
    Access, caller,
    http_permissions::{PageAccess, ROUTES},
};

/// Maximum size of a body in bytes, the same as in the registry.
const MAX_BODY: usize = 1 << 20;

/// The fields of request bodies that name instances.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    service: String,
    tenant: String,
    instance: String,
    instances: Vec<String>,
    endpoints: Vec<NamedInstance>,
    reports: Vec<NamedInstance>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedInstance {
    instance: String,
}

/// Error body, in the same form as the registry's.
#[derive(Serialize)]
struct Failure {
    error: String,
    field: &'static str,
    hint: &'static str,
}

/// A permitted request, in its extensions. Streams check it again.
#[derive(Clone, Debug)]
pub(crate) struct PermittedPage {
    caller: Caller,
    needs: Arc<[Need]>,
}

impl PermittedPage {
    /// Whether the request would still be permitted.
    pub(crate) fn holds(&self, access: &AccessControl) -> bool {
        let is_current = self.caller.user.as_ref().is_none_or(|user| Instant::now() < user.ends);
        is_current && access.check(&self.caller, &self.needs).is_ok()
    }
}

/// Wraps the pages in the authorization check.
pub(crate) fn guard_pages(pages: Router, access: Access) -> Router {
    pages.layer(from_fn_with_state(access, guard))
}

async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    if is_foreign(request.headers()) && !is_for_everyone(&request) {
        let who = Caller::of_connection(request.headers(), request.extensions());
        let refusal = Status::permission_denied("the request is sent by a page of another site");
        access.audit.note_denied(&who.to_string(), request.uri().path(), refusal.message());
        return refused_with(
            &refusal,
            "browsers read /ui/ of this address alone; call this path from a program",
        );
    }
    let caller = Caller::of_connection(request.headers(), request.extensions());
    // On pages for everyone tokens are ignored: monitoring may send tokens that are meant for others.
    let caller = match is_for_everyone(&request) {
        true => Ok(caller),
        false => {
            let shown = (request.headers(), request.extensions());
            caller::with_user(caller, shown, &access.tokens).await
        }
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(status) => {
            let who = Caller::of_connection(request.headers(), request.extensions());
            access.audit.note_denied(&who.to_string(), request.uri().path(), status.message());
            return refused(&status);
        }
    };
    let (author, path) = (caller::author(&caller, request.headers()), request.uri().path().to_owned());
    let who = caller.to_string();
    match check(&access, &caller, request).await {
        Ok(request) => write_author::scope(Some(author), next.run(request)).await,
        Err(response) => {
            if response.status() != StatusCode::BAD_REQUEST {
                access.audit.note_denied(&who, &path, response.status().as_str());
            }
            response
        }
    }
}

/// Whether a browser sent the request on behalf of another site's page, which could misuse the browser's
/// network access to this port, and thus its role.
///
/// The page at `/ui/` sends only GET requests to its own origin, and therefore no `Origin`; nor do programs.
/// A browser adds `Origin` to all other requests, even where a form or `no-cors` avoids the preflight, and
/// where the other site's name was rebound to this address. `Sec-Fetch-Site` (W3C Fetch Metadata) is checked
/// too, since GET with `no-cors` has no `Origin`. Comparing `Origin` with `Host` was rejected, since both are
/// the same after DNS rebinding.
fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    headers.contains_key(ORIGIN) || matches!(site, Some(b"cross-site" | b"same-site"))
}

/// Whether the request is for a page that is open to everyone, or for no page.
fn is_for_everyone(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>();
    path.is_none_or(|path| {
        let mut rows = ROUTES.iter().filter(|(_, route, _)| *route == path.as_str());
        rows.all(|(_, _, needed)| *needed == PageAccess::Everyone)
    })
}

async fn check(access: &Access, caller: &Caller, request: Request) -> Result<Request, Response> {
    if !access.control.is_strict() {
        return Ok(request);
    }
    let (mut head, body) = request.into_parts();
    let Some(path) = head.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned()) else {
        // No page: the fallback responds that there is none.
        return Ok(Request::from_parts(head, body));
    };
    // HEAD is handled as GET.
    let method = if head.method == "HEAD" { "GET" } else { head.method.as_str() };
    let row = ROUTES.iter().find(|(listed, route, _)| *listed == method && *route == path);
    let needed = match row {
        Some((_, _, PageAccess::Everyone)) => return Ok(Request::from_parts(head, body)),
        Some((_, _, needed)) => *needed,
        // The path has other methods: the router responds with 405.
        None if ROUTES.iter().any(|(_, route, _)| *route == path) => {
            return Ok(Request::from_parts(head, body));
        }
        None => return Err(refused(&Status::permission_denied("the page is not listed"))),
    };
    let params = RawPathParams::from_request_parts(&mut head, &()).await.ok();
    let param = |name: &str| {
        let found = params.as_ref()?.iter().find(|(key, _)| *key == name)?;
        Some(found.1.to_owned())
    };
    let service =
        param("tenant").zip(param("service")).map(|(tenant, service)| format!("{tenant}/{service}"));
    let body = to_bytes(body, MAX_BODY).await.map_err(too_large)?;
    let query = || Query::<Named>::try_from_uri(&head.uri).map(|Query(query)| query).unwrap_or_default();
    let needs = needs(needed, service, &body, query).map_err(|invalid| {
        (
            StatusCode::BAD_REQUEST,
            Json(Failure { error: invalid.to_string(), field: "", hint: "see docs/http.md" }),
        )
            .into_response()
    })?;
    access.control.check(caller, &needs).map_err(|status| refused(&status))?;
    head.extensions.insert(caller.clone());
    head.extensions.insert(PermittedPage { caller: caller.clone(), needs: needs.into() });
    Ok(Request::from_parts(head, Body::from(body)))
}

fn needs(
    needed: PageAccess,
    service: Option<String>,
    body: &Bytes,
    query: impl FnOnce() -> Named,
) -> Result<Vec<Need>, Invalid> {
    let of_path = || ServiceName::new(service.clone().unwrap_or_default());
    let named = || {
        serde_json::from_slice::<Named>(body)
            .map_err(|error| Invalid::new("", format!("the body cannot be read: {error}"), "send JSON"))
    };
    Ok(match needed {
        PageAccess::Everyone => Vec::new(),
        PageAccess::ViewAll => vec![Need::ViewAll],
        PageAccess::Administer => vec![Need::Admin],
        PageAccess::View => vec![Need::View(of_path()?)],
        PageAccess::Operate => vec![Need::Operate(of_path()?)],
        PageAccess::ViewHistory => vec![Need::ViewHistory(of_path()?)],
        PageAccess::ViewHistoryQueried => match query().service {
            all if all.is_empty() => vec![Need::ViewAll],
            service => vec![Need::ViewHistory(ServiceName::new(service)?)],
        },
        PageAccess::ViewTenantQueried => match query().tenant {
            all if all.is_empty() => vec![Need::ViewAll],
            tenant => vec![Need::ViewTenant(Tenant::new(tenant)?)],
        },
        PageAccess::ServeShards => vec![Need::Serve(of_path()?, InstanceId::new(named()?.instance)?)],
        PageAccess::Serve => {
            let named = named()?;
            let service = ServiceName::new(named.service)?;
            let listed = named.endpoints.into_iter().chain(named.reports).map(|one| one.instance);
            let instances = named.instances.into_iter().chain(listed);
            let need = |instance| Ok(Need::Serve(service.clone(), InstanceId::new(instance)?));
            let needs: Vec<_> = instances.map(need).collect::<Result<_, Invalid>>()?;
            // A body that names no instance needs a caller that may serve some instance.
            if needs.is_empty() { vec![Need::ServeAny(service)] } else { needs }
        }
    })
}

fn refused(status: &Status) -> Response {
    refused_with(
        status,
        "callers in plaintext are 'anonymous' in role bindings; over https, send the token of a user",
    )
}

fn refused_with(status: &Status, hint: &'static str) -> Response {
    let code = match status.code() {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        _ => StatusCode::FORBIDDEN,
    };
    (code, Json(Failure { error: status.message().to_owned(), field: "", hint })).into_response()
}

fn too_large(error: axum::Error) -> Response {
    let failure = Failure { error: error.to_string(), field: "", hint: "send at most 1 MiB" };
    (StatusCode::PAYLOAD_TOO_LARGE, Json(failure)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn http_request_from_page_of_another_site_is_cross_site() {
        for foreign in [
            &[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
            &[("sec-fetch-site", "same-site")],
            // Over plaintext browsers send no fetch metadata, and a rebound name is its own origin.
            &[("origin", "null")],
            &[("origin", "http://evil.example:7401"), ("host", "evil.example:7401")],
        ] {
            assert!(is_foreign(&headers(foreign)), "{foreign:?}");
        }
    }

    #[test]
    fn http_request_from_program_or_own_page_is_not_cross_site() {
        for own in [
            &[][..],
            &[("user-agent", "curl/8.5.0"), ("content-type", "application/x-www-form-urlencoded")],
            &[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")],
            &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")],
            // Headers of Node's fetch.
            &[("sec-fetch-mode", "cors"), ("accept-language", "*")],
        ] {
            assert!(!is_foreign(&headers(own)), "{own:?}");
        }
    }
}
