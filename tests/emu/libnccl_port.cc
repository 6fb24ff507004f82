// The sockets of emulated NCCL communicators. A thread of the process serves them, as a device
// works on whatever its host is at: it takes what comes, and runs what another process waits for
// and no more than that needs. It is there while there are sockets.
#include "tests/emu/libnccl_port.hpp"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace drv
{

enum {
    MOST_BYTES = 128 << 10, // of a packet
    MOST_FDS = MOST_RANKS,  // descriptors of a parcel
};

static struct {
    std::vector<port_ref> ports;
    int wake = -1;
    bool running = false; // the thread
    bool over = false;    // the process ends
} F;

static void wake()
{
    (void)!eventfd_write(F.wake, 1);
}

// --- sockets ---

static void close_all(const std::vector<int> &fds)
{
    for (int fd : fds)
        close(fd);
}

void port::drop_out()
{
    for (const parcel &p : out)
        close_all(p.fds);
    out.clear();
}

void port::end()
{
    if (ended)
        return;
    ended = true;
    shutdown(fd, SHUT_RDWR);
    drop_out();
    forget();
    wake();
}

void port::post(parcel p)
{
    if (ended) {
        close_all(p.fds);
        return;
    }
    out.push_back(std::move(p));
    wake();
}

// Sends a parcel; false when there is no room, or nobody at the other end any more.
static bool send_parcel(int fd, parcel *p)
{
    alignas(cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))] = {};
    struct iovec bytes = {(void *)p->bytes.data(), p->bytes.size()};
    struct msghdr m = {};
    m.msg_iov = &bytes;
    m.msg_iovlen = 1;
    if (!p->fds.empty()) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(p->fds.size() * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(p->fds.size() * sizeof(int));
        memcpy(CMSG_DATA(c), p->fds.data(), p->fds.size() * sizeof(int));
    }
    if (sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return false;
    close_all(p->fds);
    return true;
}

void port::flush()
{
    while (!out.empty() && send_parcel(fd, &out.front())) {
        auto last = std::move(out.front().last);
        out.pop_front();
        if (last)
            message_sent(last);
    }
}

// One packet: its bytes, 0 at the end, -1 when none is there.
static ssize_t receive(int fd, std::string *packet, std::vector<int> *fds)
{
    alignas(cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
    ssize_t n;
    packet->resize(MOST_BYTES);
    struct iovec bytes = {&(*packet)[0], packet->size()};
    struct msghdr m = {};
    m.msg_iov = &bytes;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    do // an end that was closed with packets unread says so once, before what it has sent
        n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    if (n < 0)
        return errno == EAGAIN ? -1 : 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS) {
        fds->resize((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds->data(), CMSG_DATA(c), fds->size() * sizeof(int));
    }
    packet->resize((size_t)n);
    return n;
}

void port::ready()
{
    flush();
    while (!ended) {
        std::string packet;
        std::vector<int> fds;
        ssize_t n = receive(fd, &packet, &fds);
        if (n < 0)
            break;
        if (n > 0) {
            take(packet, fds);
        } else {
            lost();
            end();
        }
    }
    if (leaving && out.empty())
        end();
}

// --- the thread ---

static void drop_ended()
{
    for (size_t i = 0; i < F.ports.size();)
        if (F.ports[i]->ended)
            F.ports.erase(F.ports.begin() + (ptrdiff_t)i);
        else
            i++;
}

static std::vector<struct pollfd> events(const std::vector<port_ref> &ports)
{
    std::vector<struct pollfd> fds = {{F.wake, POLLIN, 0}};
    for (const port_ref &p : ports)
        fds.push_back({p->fd, (short)(p->out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    return fds;
}

static void handle(const std::vector<port_ref> &ports, const std::vector<struct pollfd> &fds)
{
    eventfd_t n;
    if (fds[0].revents)
        (void)!eventfd_read(F.wake, &n);
    emu_open();
    for (size_t i = 0; i < ports.size(); i++)
        if (!ports[i]->ended && (fds[i + 1].revents || ports[i]->leaving))
            ports[i]->ready();
    emu_close();
}

// Operations that another process waits for may themselves wait for operations that a thread has
// yet to queue: they are tried again after a while.
static void *serve(void *)
{
    std::unique_lock<std::mutex> guard(S.lock);
    for (bool wait_on = false;;) {
        drop_ended();
        if (F.over || F.ports.empty())
            break;
        const std::vector<port_ref> ports = F.ports;
        std::vector<struct pollfd> fds = events(ports);
        guard.unlock();
        (void)poll(fds.data(), fds.size(), wait_on ? 1 : -1);
        guard.lock();
        if (F.over)
            break;
        handle(ports, fds);
        wait_on = false;
        for (const port_ref &p : ports)
            wait_on = (!p->ended && p->run()) || wait_on;
    }
    F.running = false;
    return nullptr;
}

// Before the objects of this library go, as a process ends.
struct ending {
    ~ending()
    {
        std::lock_guard<std::mutex> guard(S.lock);
        F.over = true;
        for (const port_ref &p : F.ports) {
            p->drop_out();
            p->forget();
        }
    }
};

static bool start()
{
    static const ending last; // made after all others, so the first to go
    sigset_t all, before;
    pthread_t thread;
    if (F.wake < 0)
        F.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (F.wake < 0 || F.running)
        return F.running;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) // of kernels
        sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    F.running = pthread_create(&thread, nullptr, serve, nullptr) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (F.running)
        pthread_detach(thread);
    return F.running;
}

bool watch_port(const port_ref &p)
{
    if (!start())
        return false;
    F.ports.push_back(p);
    wake();
    return true;
}

void forget_ports()
{
    for (const port_ref &p : std::vector<port_ref>(F.ports))
        p->end();
}

bool is_sent(const port_ref &p)
{
    return p->out.empty();
}

void close_port(const port_ref &p)
{
    p->leaving = true;
    if (p->out.empty())
        p->end();
}

void end_port(const port_ref &p)
{
    p->end();
}

} // namespace drv
