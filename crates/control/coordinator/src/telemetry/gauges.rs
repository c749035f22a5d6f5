//! The present figures for Prometheus. A figure that is not known has no row. Rows of an instance name no host, so that a move does not begin
//! a new series.

use api::{Top, TopHost, TopInstance, TopLink, TopRate, TopTalk};
use metrics::{Exposition, Labels, label};

/// The order in which [`TopHost::pressure_permille`] tells them.
const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

/// The number of pairs of instances: those with the highest rates.
const MOST_PAIRS: usize = 256;

/// Adds the figures of hosts, instances, their traffic, and links.
pub fn add(exposition: &mut Exposition, top: &Top) {
    of_hosts(exposition, &top.hosts);
    of_instances(exposition, &top.instances);
    of_talks(exposition, &top.talks);
    of_links(exposition, &top.links);
}

fn of_hosts(exposition: &mut Exposition, hosts: &[TopHost]) {
    let each = |value: fn(&TopHost) -> Option<f64>| {
        hosts.iter().filter_map(move |host| Some((label("host", &host.name), value(host)?)))
    };
    exposition.gauges("host_processors", "Processors", each(|host| Some(f64::from(host.processors))));
    exposition.gauges("host_cpu_used", "Processors in use", each(|host| host.cpu_milli.map(processors)));
    exposition.gauges("host_memory_bytes", "Memory", each(|host| Some(host.memory_bytes as f64)));
    exposition.gauges(
        "host_memory_used_bytes",
        "Memory that programs cannot get",
        each(|host| Some(host.memory_used_bytes as f64)),
    );
    let help = "Share of the last 10 s in which some program waited for the resource";
    exposition.gauges("host_pressure_ratio", help, hosts.iter().flat_map(pressure));
    exposition.gauges(
        "host_network_bytes_per_second",
        "Bytes sent and received over the device towards other hosts",
        each(|host| host.network_bytes_per_second.map(|rate| rate as f64)),
    );
}

fn pressure(host: &TopHost) -> impl Iterator<Item = (Labels, f64)> {
    let of_resource = |(resource, permille): (&str, u16)| {
        let labels = vec![("host", host.name.clone()), ("resource", resource.to_owned())];
        (labels, f64::from(permille) / 1e3)
    };
    host.pressure_permille
        .into_iter()
        .flat_map(move |shares| RESOURCES.into_iter().zip(shares).map(of_resource))
}

fn of_instances(exposition: &mut Exposition, instances: &[TopInstance]) {
    let each = |value: fn(&TopInstance) -> Option<f64>| {
        instances.iter().filter_map(move |at| Some((label("instance", &at.name), value(at)?)))
    };
    exposition.gauges("instance_cpu_used", "Processors in use", each(|at| at.cpu_milli.map(processors)));
    exposition.gauges(
        "instance_memory_bytes",
        "Memory in use",
        each(|at| at.memory_bytes.map(|bytes| bytes as f64)),
    );
    exposition.gauges(
        "instance_disk_bytes_per_second",
        "Bytes read from disks and written to them",
        each(|at| at.disk_bytes_per_second.map(|rate| rate as f64)),
    );
    exposition.gauges(
        "instance_network_bytes_per_second",
        "Bytes sent and received",
        each(|at| at.network_bytes_per_second.map(|rate| rate as f64)),
    );
}

fn of_talks(exposition: &mut Exposition, talks: &[TopTalk]) {
    let talks = &talks[..talks.len().min(MOST_PAIRS)];
    let each = |value: fn(&TopRate) -> u64| {
        talks.iter().flat_map(move |talk| {
            [("overlay", talk.overlay), ("rdma", talk.rdma)].map(|(network, rate)| {
                let labels = [ends(talk), vec![("network", network.to_owned())]].concat();
                (labels, value(&rate) as f64)
            })
        })
    };
    let help = "Bytes between two instances, both directions, mean of the last minute";
    exposition.gauges("talk_bytes_per_second", help, each(|rate| rate.bytes_per_second));
    let help = "Frames on the overlay, or messages of RDMA, between two instances";
    exposition.gauges("talk_messages_per_second", help, each(|rate| rate.messages_per_second));
    let total = |value: fn(&TopTalk) -> u64| talks.iter().map(move |talk| (ends(talk), value(talk)));
    let help = "Payload of RDMA between two instances, both directions";
    exposition.counters("rdma_bytes", help, total(|talk| talk.rdma_bytes));
    let help = "Messages of RDMA between two instances, both directions";
    exposition.counters("rdma_messages", help, total(|talk| talk.rdma_messages));
}

fn of_links(exposition: &mut Exposition, links: &[TopLink]) {
    let labels = |link: &TopLink| vec![("from", link.from.clone()), ("to", link.to.clone())];
    let each = |value: fn(&TopLink) -> Option<f64>| {
        links.iter().filter_map(move |link| Some((labels(link), value(link)?)))
    };
    let time = each(|link| Some(link.round_trip_us? as f64 / 1e6));
    exposition.gauges("link_round_trip_seconds", "The recent round trip time of a datagram", time);
    let rate = each(|link| Some(link.available_bits_per_second? as f64));
    let help = "The highest available rate that was measured in the last minute";
    exposition.gauges("link_available_bits_per_second", help, rate);
    let counted = |value: fn(&TopLink) -> u64| links.iter().map(move |link| (labels(link), value(link)));
    let sent = counted(|link| link.sent);
    exposition.counters("link_datagrams_sent", "Datagrams sent, as far as the other host has reported", sent);
    let lost = counted(|link| link.lost);
    exposition.counters("link_datagrams_lost", "Those of them that were lost", lost);
}

fn ends(TopTalk { ends: [one, other], .. }: &TopTalk) -> Labels {
    vec![("one", one.clone()), ("other", other.clone())]
}

fn processors(milli: u32) -> f64 {
    f64::from(milli) / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_are_known_have_rows() {
        let host = TopHost {
            name: "h1".into(),
            processors: 2,
            cpu_milli: Some(1250),
            memory_bytes: 4096,
            memory_used_bytes: 1024,
            pressure_permille: Some([123, 0, 1000]),
            network_bytes_per_second: Some(2048),
            instances: 1,
        };
        let instance = TopInstance {
            name: "job".into(),
            host: "h1".into(),
            cpu_milli: Some(500),
            cpu_peak_milli: None,
            memory_bytes: Some(512),
            disk_bytes_per_second: None,
            network_bytes_per_second: Some(0),
        };
        let mut exposition = Exposition::new("transhume");
        let talk = TopTalk {
            ends: ["a".into(), "b".into()],
            bytes_per_second: 30,
            overlay: TopRate { bytes_per_second: 10, messages_per_second: 1 },
            rdma: TopRate { bytes_per_second: 20, messages_per_second: 2 },
            rdma_bytes: 4000,
            rdma_messages: 40,
        };
        let link = TopLink {
            from: "h1".into(),
            to: "h2".into(),
            round_trip_us: Some(250),
            sent: 1000,
            lost: 3,
            available_bits_per_second: None,
        };
        let (hosts, instances, talks, links) = (vec![host], vec![instance], vec![talk], vec![link]);
        add(&mut exposition, &Top { hosts, instances, talks, links });
        let text = exposition.text().unwrap();
        let rows: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            r#"transhume_host_processors{host="h1"} 2.0"#,
            r#"transhume_host_cpu_used{host="h1"} 1.25"#,
            r#"transhume_host_memory_bytes{host="h1"} 4096.0"#,
            r#"transhume_host_memory_used_bytes{host="h1"} 1024.0"#,
            r#"transhume_host_pressure_ratio{host="h1",resource="cpu"} 0.123"#,
            r#"transhume_host_pressure_ratio{host="h1",resource="memory"} 0.0"#,
            r#"transhume_host_pressure_ratio{host="h1",resource="io"} 1.0"#,
            r#"transhume_host_network_bytes_per_second{host="h1"} 2048.0"#,
            r#"transhume_instance_cpu_used{instance="job"} 0.5"#,
            r#"transhume_instance_memory_bytes{instance="job"} 512.0"#,
            r#"transhume_instance_network_bytes_per_second{instance="job"} 0.0"#,
            r#"transhume_talk_bytes_per_second{one="a",other="b",network="overlay"} 10.0"#,
            r#"transhume_talk_bytes_per_second{one="a",other="b",network="rdma"} 20.0"#,
            r#"transhume_talk_messages_per_second{one="a",other="b",network="overlay"} 1.0"#,
            r#"transhume_talk_messages_per_second{one="a",other="b",network="rdma"} 2.0"#,
            r#"transhume_rdma_bytes_total{one="a",other="b"} 4000"#,
            r#"transhume_rdma_messages_total{one="a",other="b"} 40"#,
            r#"transhume_link_round_trip_seconds{from="h1",to="h2"} 0.00025"#,
            r#"transhume_link_datagrams_sent_total{from="h1",to="h2"} 1000"#,
            r#"transhume_link_datagrams_lost_total{from="h1",to="h2"} 3"#,
        ];
        for row in expected {
            assert!(rows.contains(&row), "{row} is not in\n{text}");
        }
        assert_eq!(rows.len(), expected.len(), "{text}");
    }
}
