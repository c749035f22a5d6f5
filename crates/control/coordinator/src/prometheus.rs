//! Metrics for Prometheus.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::core::Cluster;
use crate::follows::Follows;
use crate::{hosts, telemetry};

/// Serves metrics for as long as it is polled.
pub async fn serve(cluster: Arc<Cluster>, listener: TcpListener) {
    let expose = move || {
        let cluster = cluster.clone();
        async move {
            let top = telemetry::show(&cluster).await;
            let state = cluster.view();
            let under_way = state.moves().filter(|view| view.is_under_way && !view.record.dry_run);
            let statistics = state.get::<Follows>().statistics();
            let mut exposition = statistics.exposition(&hosts::list(&state), under_way.count());
            telemetry::add_gauges(&mut exposition, &top);
            exposition.text()
        }
    };
    metrics::serve(listener, expose).await;
}
