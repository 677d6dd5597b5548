use axum::{
    Json,
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use fairmesh_model::Invalid;
use serde::{Serialize, de::DeserializeOwned};

use super::MAX_BODY;
use crate::RegistryError;

/// An error response.
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) reason: Invalid,
}

#[derive(Serialize)]
struct Body<'a> {
    error: &'a str,
    field: &'a str,
    hint: &'a str,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Invalid { field, problem, hint } = &self.reason;
        (self.status, Json(Body { error: problem, field, hint })).into_response()
    }
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        let status = match error {
            RegistryError::Invalid(_) => StatusCode::BAD_REQUEST,
            RegistryError::NotFound(_) => StatusCode::NOT_FOUND,
            RegistryError::Refused(_) | RegistryError::Conflict(_) => StatusCode::CONFLICT,
            RegistryError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { status, reason: error.reason().clone() }
    }
}

impl From<Invalid> for Failure {
    fn from(reason: Invalid) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason }
    }
}

/// A JSON body. The content type is ignored, because `curl -d` declares a form.
pub(super) struct Spec<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Spec<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| unread(&rejection))?;
        let spec = serde_json::from_slice(&bytes).map_err(|error| {
            let hint = "send a JSON object with the fields that docs/http.md and docs/yaml.md name";
            Invalid::new("", error.to_string(), hint)
        })?;
        Ok(Self(spec))
    }
}

fn unread(rejection: &BytesRejection) -> Failure {
    let status = rejection.status();
    let hint = if status == StatusCode::PAYLOAD_TOO_LARGE {
        format!("keep bodies under {MAX_BODY} bytes: send the rest in further calls")
    } else {
        "send the whole body".into()
    };
    Failure { status, reason: Invalid::new("", rejection.body_text(), hint) }
}
