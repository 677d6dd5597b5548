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

use super::{Imbalance, reading::Question};

/// What may stand behind the question mark.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    service: String,
    by: String,
    window: String,
}

/// An error as the registry answers it.
#[derive(Serialize)]
struct Refusal {
    error: String,
    field: String,
    hint: String,
}

/// `GET /v1/imbalance`.
pub(crate) fn router(imbalance: Arc<Imbalance>) -> Router {
    Router::new().route("/v1/imbalance", get(read)).with_state(imbalance)
}

async fn read(State(imbalance): State<Arc<Imbalance>>, Query(asked): Query<Asked>) -> Response {
    let question = match Question::read(&asked.service, &asked.by, &asked.window) {
        Ok(question) => question,
        Err(Invalid { field, problem, hint }) => {
            return refuse(StatusCode::BAD_REQUEST, Refusal { error: problem, field, hint });
        }
    };
    match imbalance.recent(question).await {
        Ok(report) => Json(report.view()).into_response(),
        Err(error) => {
            let refusal = Refusal { error, field: String::new(), hint: "try again".into() };
            refuse(StatusCode::SERVICE_UNAVAILABLE, refusal)
        }
    }
}

fn refuse(status: StatusCode, refusal: Refusal) -> Response {
    (status, Json(refusal)).into_response()
}
