use fairmesh_model::{Location, Role, ServiceName, ShardKey};

/// A call that is explained and not made.
#[derive(Clone, Debug)]
pub struct HypotheticalCall {
    /// The called service.
    pub service: ServiceName,
    /// The key of the call.
    pub key: Option<ShardKey>,
    /// The required role of the replica.
    pub role: Option<Role>,
    /// The method of the request, in capitals; ignored for gRPC, where it is POST.
    pub method: String,
    /// The path of the request; for gRPC `/package.Service/Method`.
    pub path: String,
    /// Headers of the request.
    pub headers: Vec<(String, String)>,
    /// The host of the request; may be empty.
    pub host: String,
    /// Where the caller is.
    pub location: Location,
    /// The id of the caller, which determines its subset of endpoints.
    pub client_id: String,
    /// The random seed of the call, for splits and picks.
    pub seed: u64,
    /// Backends without endpoints to which a route that redistributes their calls leads.
    pub empty_backends: Vec<ServiceName>,
}
