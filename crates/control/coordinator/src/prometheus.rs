//! Metrics for Prometheus.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::core::Cluster;
use crate::follows::Follows;
use crate::hosts;

/// Serves metrics for as long as it is polled.
pub async fn serve(cluster: Arc<Cluster>, listener: TcpListener) {
    let expose = move || {
        let cluster = cluster.clone();
        async move {
            let state = cluster.view();
            let under_way = state.moves().filter(|view| view.is_under_way && !view.record.dry_run);
            state.get::<Follows>().statistics().exposition(&hosts::list(&state), under_way.count())
        }
    };
    metrics::serve(listener, expose).await;
}
