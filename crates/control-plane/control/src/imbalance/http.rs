use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::{Imbalance, ReportQuery};

/// Query parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct QueryParams {
    service: String,
    by: String,
    window: String,
}

/// Error body, in the same form as the registry's.
#[derive(Serialize)]
struct ErrorBody {
    error: String,
    field: String,
    hint: String,
}

/// The route `GET /v1/imbalance`.
pub(crate) fn router(imbalance: Arc<Imbalance>) -> Router {
    Router::new().route("/v1/imbalance", get(read)).with_state(imbalance)
}

async fn read(State(imbalance): State<Arc<Imbalance>>, Query(params): Query<QueryParams>) -> Response {
    let query = match ReportQuery::read(&params.service, &params.by, &params.window) {
        Ok(query) => query,
        Err(Invalid { field, problem, hint }) => {
            return error_response(StatusCode::BAD_REQUEST, ErrorBody { error: problem, field, hint });
        }
    };
    match imbalance.cached_report(query).await {
        Ok(report) => Json(report.view()).into_response(),
        Err(error) => {
            let body = ErrorBody { error, field: String::new(), hint: "retry".into() };
            error_response(StatusCode::SERVICE_UNAVAILABLE, body)
        }
    }
}

fn error_response(status: StatusCode, body: ErrorBody) -> Response {
    (status, Json(body)).into_response()
}
