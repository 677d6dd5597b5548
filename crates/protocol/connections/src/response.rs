use http::{HeaderMap, Response, StatusCode};

use super::{error::SendError, h1, h2};

/// The head of a response, with a body that is read from its connection.
pub enum EndpointResponse {
    /// A response over HTTP/1.1.
    H1(Response<h1::ResponseBody>),
    /// A response over HTTP/2.
    H2(Response<h2::ResponseBody>),
}

/// The result of an attempt.
pub type SendResult = Result<EndpointResponse, SendError>;

impl EndpointResponse {
    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::H1(response) => response.status(),
            Self::H2(response) => response.status(),
        }
    }

    /// The headers of the response.
    pub fn headers(&self) -> &HeaderMap {
        match self {
            Self::H1(response) => response.headers(),
            Self::H2(response) => response.headers(),
        }
    }
}
