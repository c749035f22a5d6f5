// The kernel's fast path: carries frames between stations of two nodes on an unencrypted link (docs/adr/0021).
//
//   station's TAP ── from_station ──▶ VXLAN device ─ … ─ VXLAN device ── from_peer ──▶ station's TAP
//        │ all other frames                                   │ unknown frames
//        ▼                                                    ▼
//      plane ── its own TAP ── from_plane ──▶ VXLAN …      the plane's own TAP ──▶ plane
//
// The plane writes the maps, which list the frames to carry; all others go to the plane, and no frame goes from
// one node to a third. crates/overlay/io/src/kernel.rs has the same numbers.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MOST_STATIONS 65536
#define MOST_NODES 4096
// A node has a session that is present, one that was, and one that is expected.
#define MOST_SESSIONS (3 * MOST_NODES)
#define MOST_FLOWS 4096

// IEEE 802's second ethertype for local experiments: frames to the plane, and its words.
#define TYPE_PLANE 0x88b6

#define IPV4_PROTOCOL 9
#define IPV6_NEXT 6
#define IPV6_HEADER 40
#define TCP_LENGTH 12
#define UDP_HEADER 8
// UDP may be a tunnel, whose segments include inner headers: at most so many bytes.
#define TUNNEL 160
#define TTL 64

// A station's TAP.
struct tap {
	__u32 index;
	__u32 longest; // bytes of a frame that it may send
};

// The address of a node.
struct peer {
	__u32 address; // in the host's order, as in `bpf_tunnel_key`
	__u32 vni;
	__u32 longest; // bytes of a frame that arrives
	__u32 is_alive;
};

// The session of incoming frames.
struct way {
	__u32 address;
	__u32 vni;
};

// Their sender.
struct session {
	__u32 number;
	__u32 node;
};

struct flow {
	__u8 to[ETH_ALEN];
	__u8 from[ETH_ALEN];
};

struct volume {
	__u64 bytes;
	__u64 frames;
};

// A MAC, and zeroes.
typedef __u64 mac_key;

enum drop { STRANGER, MALFORMED, NOT_HANDED_OVER, DROPS };

#define HASH(name, key_type, value_type, most)           \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_HASH);         \
		__uint(map_flags, BPF_F_NO_PREALLOC);    \
		__uint(max_entries, most);               \
		__type(key, key_type);                   \
		__type(value, value_type);               \
	} name SEC(".maps")

#define COUNTERS(name, kind, key_type, value_type, most) \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_PERCPU_##kind);\
		__uint(max_entries, most);               \
		__type(key, key_type);                   \
		__type(value, value_type);               \
	} name SEC(".maps")

// Stations of this node that run, with their TAPs; and stations of nodes at the other end of a link, with their
// nodes.
HASH(here, mac_key, struct tap, MOST_STATIONS);
HASH(there, mac_key, __u32, MOST_STATIONS);
HASH(peers, __u32, struct peer, MOST_NODES);
HASH(sessions, struct way, struct session, MOST_SESSIONS);
COUNTERS(flows, HASH, struct flow, struct volume, MOST_FLOWS);
// Frames by node, and by session.
COUNTERS(sent, HASH, __u32, __u64, MOST_NODES);
COUNTERS(received, HASH, __u32, __u64, MOST_SESSIONS);
COUNTERS(drops, ARRAY, __u32, __u64, DROPS);

// Devices.
const volatile __u32 vxlan = 0;
const volatile __u32 plane = 0;

struct front {
	struct flow flow;
	__be16 type;
} __attribute__((packed));

// The front of a frame to the plane, or of the plane's own.
struct to_plane {
	struct front front;
	__be32 number; // the session by which it came, or the node to which it goes
} __attribute__((packed));

static __always_inline mac_key key_of(const __u8 *mac)
{
	mac_key key = 0;

	__builtin_memcpy(&key, mac, ETH_ALEN);
	return key;
}

static __always_inline void increment(void *map, __u32 key)
{
	__u64 *count = bpf_map_lookup_elem(map, &key);

	if (count)
		*count += 1;
}

static __always_inline int drop(enum drop why)
{
	increment(&drops, why);
	return TC_ACT_SHOT;
}

// Bytes of headers of a segment, and how many more there may be `inside`; 0 for one that is not TCP or UDP right behind IP.
static __always_inline __u32 headers_of(struct __sk_buff *skb, __be16 type, __u32 *inside)
{
	__u8 version_and_length, protocol, length;
	__u32 transport = ETH_HLEN;

	if (type == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &version_and_length, 1) ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + IPV4_PROTOCOL, &protocol, 1))
			return 0;
		transport += (version_and_length & 0xf) * 4;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_NEXT, &protocol, 1))
			return 0;
		transport += IPV6_HEADER;
	} else {
		return 0;
	}
	*inside = protocol == IPPROTO_UDP ? TUNNEL : 0;
	if (protocol == IPPROTO_UDP)
		return transport + UDP_HEADER;
	if (protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, transport + TCP_LENGTH, &length, 1))
		return 0;
	return transport + (length >> 4) * 4;
}

// The volume of a frame, or of all pieces of a segment. Returns an upper bound for the longest of them; 0 if it
// is unknown.
static __always_inline __u32 measure(struct __sk_buff *skb, __be16 type, struct volume *volume)
{
	__u32 size = skb->gso_size, length = skb->len, headers, inside = 0;

	volume->bytes = length;
	volume->frames = 1;
	if (!size)
		return length;
	headers = headers_of(skb, type, &inside);
	if (!headers || length <= headers)
		return 0;
	length -= headers;
	volume->frames = (length + size - 1) / size;
	volume->bytes = length + volume->frames * headers;
	return headers + inside + size;
}

// False if there is no room: the plane counts the frames that it carries.
static __always_inline int count(const struct flow *flow, const struct volume *more)
{
	struct volume *volume = bpf_map_lookup_elem(&flows, flow);

	if (!volume)
		return !bpf_map_update_elem(&flows, flow, more, BPF_NOEXIST);
	volume->bytes += more->bytes;
	volume->frames += more->frames;
	return 1;
}

static __always_inline int send(struct __sk_buff *skb, const struct peer *peer)
{
	struct bpf_tunnel_key key = {};

	key.tunnel_id = peer->vni;
	key.remote_ipv4 = peer->address;
	key.tunnel_ttl = TTL;
	// A too long frame is dropped, not fragmented; and frames of stations have checksums of their own.
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), BPF_F_DONT_FRAGMENT | BPF_F_ZERO_CSUM_TX))
		return TC_ACT_SHOT;
	return bpf_redirect(vxlan, 0);
}

// Hands a frame of a station's TAP over to the plane.
SEC("classifier")
int from_station(struct __sk_buff *skb)
{
	struct front front;
	struct volume volume;
	struct peer *peer;
	mac_key from, to;
	struct tap *tap;
	__u32 *node, longest;

	if (skb->vlan_present || bpf_skb_load_bytes(skb, 0, &front, sizeof(front)) ||
	    front.type == bpf_htons(ETH_P_8021Q) || front.type == bpf_htons(ETH_P_8021AD) ||
	    front.type == bpf_htons(TYPE_PLANE))
		return TC_ACT_UNSPEC;
	to = key_of(front.flow.to);
	node = bpf_map_lookup_elem(&there, &to);
	if (!node)
		return TC_ACT_UNSPEC;
	// A frame with a foreign source MAC is for the plane to judge.
	from = key_of(front.flow.from);
	tap = bpf_map_lookup_elem(&here, &from);
	if (!tap || tap->index != skb->ifindex)
		return TC_ACT_UNSPEC;
	// Were only short frames carried here, they would overtake long ones.
	peer = bpf_map_lookup_elem(&peers, node);
	if (!peer || !peer->is_alive || tap->longest > peer->longest)
		return TC_ACT_UNSPEC;
	longest = measure(skb, front.type, &volume);
	if (!longest || longest > peer->longest || !count(&front.flow, &volume))
		return TC_ACT_UNSPEC;
	increment(&sent, *node);
	return send(skb, peer);
}

// Words of this plane to another one.
SEC("classifier")
int from_plane(struct __sk_buff *skb)
{
	struct to_plane front;
	struct peer *peer;
	__u32 node;

	if (bpf_skb_load_bytes(skb, 0, &front, sizeof(front)) || front.front.type != bpf_htons(TYPE_PLANE))
		return TC_ACT_SHOT;
	node = bpf_ntohl(front.number);
	peer = bpf_map_lookup_elem(&peers, &node);
	return peer ? send(skb, peer) : TC_ACT_SHOT;
}

// Hands a frame over to the plane.
static __always_inline int hand_over(struct __sk_buff *skb, const struct session *session)
{
	struct to_plane front = {};

	front.front.type = bpf_htons(TYPE_PLANE);
	front.number = bpf_htonl(session->number);
	if (bpf_skb_change_head(skb, sizeof(front), 0) || bpf_skb_store_bytes(skb, 0, &front, sizeof(front), 0))
		return drop(NOT_HANDED_OVER);
	return bpf_redirect(plane, 0);
}

// Frames of other nodes, from the VXLAN device.
SEC("classifier")
int from_peer(struct __sk_buff *skb)
{
	struct bpf_tunnel_key key = {};
	struct way way = {};
	struct session *session;
	struct front front;
	mac_key from, to;
	struct tap *tap;
	__u32 *node;

	if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0))
		return drop(STRANGER);
	way.address = key.remote_ipv4;
	way.vni = key.tunnel_id;
	session = bpf_map_lookup_elem(&sessions, &way);
	if (!session)
		return drop(STRANGER);
	if (skb->vlan_present || bpf_skb_load_bytes(skb, 0, &front, sizeof(front)))
		return drop(MALFORMED);
	from = key_of(front.flow.from);
	to = key_of(front.flow.to);
	node = bpf_map_lookup_elem(&there, &from);
	if (!node || *node != session->node)
		return hand_over(skb, session);
	tap = bpf_map_lookup_elem(&here, &to);
	if (!tap)
		return hand_over(skb, session);
	increment(&received, session->number);
	return bpf_redirect(tap->index, BPF_F_INGRESS);
}

// Remains at the VXLAN device after the process has ended, so that the host itself takes no frames from there.
SEC("classifier")
int nothing(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_SHOT;
}

// No helper above requires a GPL license.
char _license[] SEC("license") = "Apache-2.0";
