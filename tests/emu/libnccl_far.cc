// Ranks of an emulated NCCL communicator in several processes of one machine: how they find each
// other, and what goes between them.
//
// The process that makes an id listens on an abstract socket of that name, which goes when the
// process does. Every rank says there who it is; when all have, each is told who the others are and
// is given a socket to each that is in another process. The two sides of a message tell each other
// when they have come to it, and its size; then the sender's bytes go over, in pieces.
#include "tests/emu/libnccl_port.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace drv
{

enum { PIECE = 64 << 10, BACKLOG = 64 };

// --- meeting ---

struct seat { // identity of a rank
    int process, device;
    char host[64];
};

struct hello {
    int n_rank, rank;
    seat who;
};

// Machines are told apart as the real one does.
static seat own_seat(int device)
{
    seat s = {(int)getpid(), device, ""};
    const char *name = getenv("NCCL_HOSTID");
    if (name)
        snprintf(s.host, sizeof s.host, "%s", name);
    else
        (void)gethostname(s.host, sizeof s.host - 1);
    return s;
}

static bool is_same_machine(const seat &a, const seat &b)
{
    return !strcmp(a.host, b.host);
}

struct root;

// A rank that has come to the root.
struct guest : port, std::enable_shared_from_this<guest> {
    guest(int f, const std::shared_ptr<root> &r) : port(f), host(r)
    {
    }
    void take(const std::string &packet, const std::vector<int> &) override;
    void lost() override;
    const std::weak_ptr<root> host;
    hello said = {};
    bool seated = false;
};

struct root : port, std::enable_shared_from_this<root> {
    explicit root(int f) : port(f)
    {
    }
    void ready() override;
    void seat_guest(const std::shared_ptr<guest> &g);
    void answer_all();
    void forget() override
    {
        seats.clear();
    }
    std::vector<std::shared_ptr<guest>> seats;
    int n_received = 0;
};

static void answer(guest *g, int result, const std::vector<seat> &seats, std::vector<int> fds)
{
    std::string bytes((const char *)&result, sizeof result);
    bytes.append((const char *)seats.data(), seats.size() * sizeof(seat));
    g->post({std::move(bytes), std::move(fds), nullptr});
    g->leaving = true;
}

void root::ready()
{
    int f = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (f >= 0)
        (void)add_port(std::make_shared<guest>(f, shared_from_this()));
}

void guest::take(const std::string &packet, const std::vector<int> &)
{
    auto at = host.lock();
    if (!at || packet.size() != sizeof said)
        return end();
    memcpy(&said, packet.data(), sizeof said);
    at->seat_guest(shared_from_this());
}

void guest::lost() // before all have come: the others wait on
{
    auto at = host.lock();
    if (!at || at->ended || !seated)
        return;
    at->seats[(size_t)said.rank].reset();
    at->n_received--;
}

void root::seat_guest(const std::shared_ptr<guest> &g)
{
    if (seats.empty())
        seats.resize((size_t)g->said.n_rank);
    if ((int)seats.size() != g->said.n_rank || seats[(size_t)g->said.rank]) {
        answer(g.get(), NCCL_INVALID_USAGE, {}, {});
        return;
    }
    seats[(size_t)g->said.rank] = g;
    g->seated = true;
    if (++n_received < (int)seats.size())
        return;
    answer_all();
    end();
}

// Sends the list of ranks, and to each pair in two processes the ends of a new socket.
void root::answer_all()
{
    const size_t n = seats.size();
    std::vector<seat> all;
    std::vector<std::vector<int>> fds(n);
    int result = NCCL_OK;
    for (const auto &g : seats)
        all.push_back(g->said.who);
    for (size_t a = 0; a < n; a++)
        for (size_t b = a + 1; b < n; b++) {
            int pair[2];
            if (all[a].process == all[b].process)
                continue;
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
                result = NCCL_SYSTEM;
                continue;
            }
            fds[a].push_back(pair[0]);
            fds[b].push_back(pair[1]);
        }
    for (size_t i = 0; i < n; i++)
        answer(seats[i].get(), result, all, std::move(fds[i]));
}

// "": there are none.
static std::string same_devices(const std::vector<seat> &ranks)
{
    char why[128];
    for (size_t b = 0; b < ranks.size(); b++)
        for (size_t a = 0; a < b; a++)
            if (ranks[a].device == ranks[b].device && is_same_machine(ranks[a], ranks[b])) {
                snprintf(why, sizeof why,
                         "Duplicate GPU detected : rank %zu and rank %zu both on CUDA device %x000",
                         a, b, ranks[a].device + 1);
                return why;
            }
    return "";
}

// A rank's way to the root.
struct visit : port {
    visit(int f, uint64_t c, const hello &h) : port(f), comm(c), said(h)
    {
    }
    void take(const std::string &packet, const std::vector<int> &fds) override;
    void lost() override
    {
        comm_joined(comm, NCCL_REMOTE, "bootstrap: the root has closed its connection", {});
    }
    const uint64_t comm;
    const hello said;
};

void visit::take(const std::string &packet, const std::vector<int> &fds)
{
    int result;
    memcpy(&result, packet.data(), sizeof result);
    std::vector<seat> seats((packet.size() - sizeof result) / sizeof(seat));
    memcpy((void *)seats.data(), packet.data() + sizeof result, seats.size() * sizeof(seat));
    std::string why = result ? "bootstrap: the root has refused the rank" : same_devices(seats);
    std::vector<neighbour> ranks;
    size_t n = 0;
    for (const seat &s : seats)
        ranks.push_back(
            {s.process == said.who.process ? -1 : fds[n++], is_same_machine(s, said.who)});
    end();
    comm_joined(comm, result || why.empty() ? result : NCCL_INVALID_USAGE, why, ranks);
}

// A socket, and the address of the id's root; -1 when there is none to be had.
static int root_socket(const struct nccl_id &id, struct sockaddr_un *at, socklen_t *n)
{
    *at = {};
    at->sun_family = AF_UNIX;
    snprintf(at->sun_path + 1, sizeof at->sun_path - 1, "gpurun nccl %.80s", id.bytes);
    *n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(at->sun_path + 1));
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

bool make_root(struct nccl_id *id)
{
    static uint64_t made = 0;
    struct sockaddr_un at;
    socklen_t n;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "emulated %d %llu", (int)getpid(),
             (unsigned long long)++made);
    int fd = root_socket(*id, &at, &n);
    if (fd < 0)
        return false;
    auto r = std::make_shared<root>(fd);
    return !bind(fd, (struct sockaddr *)&at, n) && !listen(fd, BACKLOG) && add_port(r);
}

port_ref visit_root(const struct nccl_id &id, int n_rank, int rank, int device, uint64_t comm)
{
    struct sockaddr_un at;
    socklen_t n;
    const hello said = {n_rank, rank, own_seat(device)};
    int fd = root_socket(id, &at, &n);
    if (fd < 0)
        return nullptr;
    auto v = std::make_shared<visit>(fd, comm, said);
    if (connect(fd, (struct sockaddr *)&at, n) || !add_port(v))
        return nullptr;
    v->post({std::string((const char *)&said, sizeof said), {}, nullptr});
    return v;
}

// --- messages ---

struct note { // head of a packet
    enum { arrived, data, goodbye } what;
    bool sends; // arrived: it is the side that sends
    uint64_t bytes;
};

// Two ranks in two processes.
struct link : port {
    link(const neighbour &n, uint64_t c) : port(n.fd), comm(c), same_machine(n.same_machine)
    {
    }
    void take(const std::string &packet, const std::vector<int> &) override;
    bool run() override;
    void lost() override
    {
        if (!goodbye && !same_machine) // there kernels wait on, and nothing notices
            comm_lost(comm);
    }
    void forget() override
    {
        sends.reset();
        recvs.reset();
    }
    void tell(note n, const char *bytes, std::shared_ptr<wire> last)
    {
        std::string packet((const char *)&n, sizeof n);
        post({packet.append(bytes, n.what == note::data ? n.bytes : 0), {}, std::move(last)});
    }
    const uint64_t comm;
    const bool same_machine;
    std::shared_ptr<wire> sends, recvs;
    bool goodbye = false; // the other side has said so
};

void link::take(const std::string &packet, const std::vector<int> &)
{
    note n;
    memcpy(&n, packet.data(), sizeof n);
    std::shared_ptr<wire> w = n.what == note::arrived && !n.sends ? sends : recvs;
    if (n.what == note::arrived)
        w->arrived.push_back(n.bytes);
    else if (n.what == note::data)
        w->came.append(packet, sizeof n, n.bytes);
    goodbye |= n.what == note::goodbye;
    meet_far(w);
}

bool link::run()
{
    std::shared_ptr<wire> out = sends, in = recvs;
    bool a = run_awaited(*out), b = run_awaited(*in);
    return a || b;
}

port_ref open_link(const neighbour &n, uint64_t comm, const std::shared_ptr<wire> &out,
                   const std::shared_ptr<wire> &in)
{
    auto l = std::make_shared<link>(n, comm);
    l->sends = out;
    l->recvs = in;
    out->far = in->far = l;
    return add_port(l);
}

static link *link_of(const port_ref &p)
{
    return static_cast<link *>(p.get());
}

void tell_arrival(const wire &w, bool sends, uint64_t bytes)
{
    link_of(w.far)->tell({note::arrived, sends, bytes}, "", nullptr);
}

void send_message(const std::shared_ptr<wire> &w, const range &bytes)
{
    uintptr_t p = bytes.lo;
    do {
        uint64_t n = std::min<uint64_t>(bytes.hi - p, PIECE);
        p += n;
        link_of(w->far)->tell({note::data, true, n}, (const char *)p - n,
                              p == bytes.hi ? w : nullptr);
    } while (p < bytes.hi);
}

void say_goodbye(const port_ref &p)
{
    link_of(p)->tell({note::goodbye, false, 0}, "", nullptr);
}

} // namespace drv
