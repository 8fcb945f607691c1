//! Routes of files and batches.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use super::{batch_endpoints, file_endpoints, upload};
use crate::state::ServerState;

/// Adds the routes, whose paths begin with `prefix`, to a router.
pub fn add_routes(router: Router<Arc<ServerState>>, prefix: &str) -> Router<Arc<ServerState>> {
    router
        .route(&format!("{prefix}/files"), post(upload::create_file).get(file_endpoints::list))
        .route(
            &format!("{prefix}/files/{{id}}"),
            get(file_endpoints::retrieve).delete(file_endpoints::delete),
        )
        .route(&format!("{prefix}/files/{{id}}/content"), get(file_endpoints::content))
        .route(
            &format!("{prefix}/batches"),
            post(batch_endpoints::create).get(batch_endpoints::list),
        )
        .route(&format!("{prefix}/batches/{{id}}"), get(batch_endpoints::retrieve))
        .route(&format!("{prefix}/batches/{{id}}/cancel"), post(batch_endpoints::cancel))
}
