//! Routes as numbers, for eBPF programs, which share memory with the proxy but no types.
//!
//! A route is a sequence of conditions and a final step. `bpf/lib/route.h` evaluates them like [`Routes::find`]. A
//! condition that the eBPF program cannot evaluate has the kind `UNKNOWN`. A final step that it cannot carry out is
//! `LEAVE`.

use fairmesh_model::{
    Backend, GrpcMatch, HeaderMatch, Match, PathMatch, Segment, Tenant, TextMatch, Timeouts,
};

use super::{Routes, Rule, condition::host_satisfies};

/// Maximum number of steps over all routes of a service. The remaining routes are left to the proxy.
pub const ROUTE_STEPS: usize = 32;
/// Maximum number of backends over all splits of a service.
pub const ROUTE_ARMS: usize = 8;
/// Maximum length of a condition's text, in bytes.
const TEXT_BYTES: usize = 64;
/// Maximum length of a header name in a condition, in bytes.
const NAME_BYTES: usize = 24;

/// Methods that have a bit, in the order of `method_bit` in `bpf/lib/parse.h`. The kernel sends no requests with other
/// methods.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Headers that a proxy may change before routing, or that frame the request.
const CHANGED_HEADERS: [&str; 5] =
    ["host", "connection", "content-length", "x-forwarded-proto", "traceparent"];

/// A condition of a route, or its final step. All integers are in the machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct RouteStep {
    kind: u32,
    /// For a text, its length. For methods, their bits. For a query, 1 if all parameters must be absent. For a split,
    /// its first backend in the low half and the number of backends in the high half.
    argument: u32,
    /// Header name, padded with zeros like `text`.
    name: [u8; NAME_BYTES],
    text: [u8; TEXT_BYTES],
}

/// The routes of a service, for requests to one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteNumbers {
    /// Steps, at most [`ROUTE_STEPS`].
    pub steps: Vec<RouteStep>,
    /// The backends of all splits, at most [`ROUTE_ARMS`].
    pub arms: Vec<RouteArm>,
    /// Whether any route allows repeating requests of any method.
    pub repeats_any: bool,
}

/// A backend of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteArm {
    /// The backend.
    pub backend: Backend,
    /// Cumulative weight within the split up to this backend.
    pub cumulative_weight: u64,
}

#[derive(Clone, Copy)]
enum StepKind {
    Method,
    PathExact,
    PathPrefix,
    HeaderAbsent,
    HeaderPresent,
    HeaderExact,
    HeaderPrefix,
    Query,
    Unknown,
    ToService,
    ToArms,
    Leave,
}

impl RouteStep {
    /// A step of zeros, for padding arrays.
    pub const NONE: Self = Self { kind: 0, argument: 0, name: [0; NAME_BYTES], text: [0; TEXT_BYTES] };

    fn new(kind: StepKind, argument: u32) -> Self {
        Self { kind: kind as u32, argument, ..Self::NONE }
    }

    /// Creates a step with a text. Returns `None` if a text is too long.
    fn text(kind: StepKind, name: &str, text: &str) -> Option<Self> {
        let mut step = Self::new(kind, u32::try_from(text.len()).ok()?);
        step.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        step.text.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(step)
    }
}

impl Routes {
    /// Returns the routes of requests to this host, which is given without port and trailing dot. `own` is the
    /// service's tenant and timeouts.
    pub(crate) fn numbers(&self, host: &str, own: (&Tenant, &Timeouts)) -> RouteNumbers {
        let mut numbers = RouteNumbers::default();
        for rule in self.rules.iter().filter(|rule| rule.matches_client) {
            let Some(mut steps) = conditions(&rule.matches, host) else { continue };
            numbers.repeats_any |= rule.idempotent;
            let end = numbers.end(rule, own).unwrap_or(RouteStep::new(StepKind::Leave, 0));
            steps.push(end);
            // The last step is reserved for routes that do not fit.
            if numbers.steps.len() + steps.len() >= ROUTE_STEPS {
                numbers.steps.push(RouteStep::new(StepKind::Leave, 0));
                break;
            }
            numbers.steps.extend(steps);
        }
        numbers
    }
}

impl RouteNumbers {
    /// Returns the final step of a route; `None` if the kernel cannot carry it out.
    fn end(&mut self, rule: &Rule, (tenant, timeouts): (&Tenant, &Timeouts)) -> Option<RouteStep> {
        // Names every field, so that new fields of routes must be considered here. The class matters only with a region
        // table, and a service with a region table has no numbers.
        let Rule {
            name: _,
            matches: _,
            split,
            first_route_backend: _,
            class: _,
            timeouts: own,
            idempotent: _,
            matches_client: _,
            cumulative_weights: _,
            actions,
        } = rule;
        // With a total timeout, a deadline must be sent to servers.
        if actions.is_some() || own.or(timeouts).total.is_some() {
            return None;
        }
        if split.is_empty() {
            return Some(RouteStep::new(StepKind::ToService, 0));
        }
        // The other tenant's consent is in a policy that is not compiled here.
        if split.iter().any(|backend| backend.service.tenant != *tenant) {
            return None;
        }
        let (first, mut total) = (self.arms.len(), 0);
        let arms = split.iter().filter(|backend| backend.weight > 0).map(|backend| {
            total += u64::from(backend.weight);
            RouteArm { backend: backend.clone(), cumulative_weight: total }
        });
        let arms: Vec<_> = arms.collect();
        if arms.is_empty() || first + arms.len() > ROUTE_ARMS {
            return None;
        }
        // Both numbers are at most 8.
        let argument = first as u32 | (arms.len() as u32) << 16;
        self.arms.extend(arms);
        Some(RouteStep::new(StepKind::ToArms, argument))
    }
}

/// Returns the conditions of a route; `None` if no request that the kernel sends to this host can meet them.
fn conditions(matches: &Match, host: &str) -> Option<Vec<RouteStep>> {
    // Client conditions were already evaluated during compilation.
    let Match { clients: _, hosts, path, methods, headers, query, grpc } = matches;
    if !hosts.is_empty() && !hosts.iter().any(|wanted| host_satisfies(host, wanted)) {
        return None;
    }
    let mut steps = Vec::new();
    if !methods.is_empty() {
        let bits = (0..).zip(METHODS).filter(|(_, known)| methods.iter().any(|method| method == known));
        let bits = bits.fold(0, |bits, (bit, _)| bits | 1_u32 << bit);
        if bits == 0 {
            return None;
        }
        steps.push(RouteStep::new(StepKind::Method, bits));
    }
    let unknown = RouteStep::new(StepKind::Unknown, 0);
    path.iter().for_each(|path| push_path(&mut steps, path));
    steps.extend(headers.iter().map(|header| header_step(header).unwrap_or(unknown)));
    if !query.is_empty() {
        let is_absent = query.iter().all(|query| query.value == TextMatch::Absent);
        steps.push(RouteStep::new(StepKind::Query, is_absent.into()));
    }
    if let Some(GrpcMatch { service, method: _ }) = grpc {
        // Only a request with a content type may be gRPC.
        let prefix = RouteStep::text(StepKind::PathPrefix, "", &format!("/{service}"));
        let has_type = RouteStep::text(StepKind::HeaderPresent, "content-type", "");
        steps.extend(prefix.into_iter().chain(has_type).chain([unknown]));
    }
    Some(steps)
}

fn push_path(steps: &mut Vec<RouteStep>, path: &PathMatch) {
    let unknown = RouteStep::new(StepKind::Unknown, 0);
    match path {
        PathMatch::Exact(path) => {
            steps.push(RouteStep::text(StepKind::PathExact, "", path).unwrap_or(unknown));
        }
        PathMatch::Prefix(path) => {
            steps.push(RouteStep::text(StepKind::PathPrefix, "", path).unwrap_or(unknown));
        }
        // Paths that do not begin with the template's literal segments cannot match.
        PathMatch::Template(template) => {
            let literals = template.segments().iter().map_while(|segment| match segment {
                Segment::Literal(literal) => Some(format!("/{literal}")),
                Segment::Variable(_) => None,
            });
            steps.extend(RouteStep::text(StepKind::PathPrefix, "", &literals.collect::<String>()));
            steps.push(unknown);
        }
        PathMatch::Regex(_) => steps.push(unknown),
    }
}

fn header_step(HeaderMatch { name, value }: &HeaderMatch) -> Option<RouteStep> {
    if CHANGED_HEADERS.contains(&name.as_str()) || name.starts_with("x-fairmesh-") {
        return None;
    }
    match value {
        TextMatch::Absent => RouteStep::text(StepKind::HeaderAbsent, name, ""),
        TextMatch::Present => RouteStep::text(StepKind::HeaderPresent, name, ""),
        TextMatch::Exact(text) => RouteStep::text(StepKind::HeaderExact, name, text),
        TextMatch::Prefix(text) => RouteStep::text(StepKind::HeaderPrefix, name, text),
        TextMatch::Regex(_) => None,
    }
}
