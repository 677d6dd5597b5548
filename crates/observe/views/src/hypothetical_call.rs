use fairmesh_model::{Location, Role, ServiceName, ShardKey};

/// A call whose routing is explained without making the call.
#[derive(Clone, Debug)]
pub struct HypotheticalCall {
    /// The called service.
    pub service: ServiceName,
    /// Shard key of the call.
    pub key: Option<ShardKey>,
    /// Required role of the replica.
    pub role: Option<Role>,
    /// Method of the request, in capitals. Ignored for gRPC, where it is always POST.
    pub method: String,
    /// Path of the request; for gRPC `/package.Service/Method`.
    pub path: String,
    /// Headers of the request.
    pub headers: Vec<(String, String)>,
    /// Host of the request; may be empty.
    pub host: String,
    /// Location of the caller.
    pub location: Location,
    /// Id of the caller, which determines its subset of endpoints.
    pub client_id: String,
    /// Random seed of the call, for traffic splits and picks.
    pub seed: u64,
    /// Backends without endpoints that are on a route which redistributes their calls.
    pub empty_backends: Vec<ServiceName>,
}
