// Sockets of an emulated NCCL communicator to ranks in other processes, and the thread that looks
// after them.
#pragma once

#include <unistd.h>

#include "tests/emu/libcuda_state.hpp"

namespace drv
{

// Unit of transfer over a socket.
struct parcel {
    std::string bytes;
    std::vector<int> fds;       // sent with it, and closed then
    std::shared_ptr<wire> last; // its message has been sent when this has gone
};

// A socket of this process.
struct port {
    explicit port(int f) : fd(f)
    {
    }
    virtual ~port()
    {
        drop_out();
        close(fd);
    }
    virtual void ready(); // something has come, or there is room for more
    virtual void take(const std::string &, const std::vector<int> &)
    {
    }
    virtual void lost() // the other end is closed
    {
    }
    virtual void forget() // drops its references, as it is closed
    {
    }
    virtual bool run() // runs the operations that the other end waits for; true when it still waits
    {
        return false;
    }
    void post(parcel p);
    void end();
    void drop_out();
    const int fd;
    bool ended = false;
    bool leaving = false; // it ends when everything has gone
    std::deque<parcel> out;

  private:
    void flush();
};

bool watch_port(const port_ref &p);

// One that is new; null when there can be none.
template <class T> std::shared_ptr<T> add_port(std::shared_ptr<T> p)
{
    return watch_port(p) ? p : nullptr;
}

} // namespace drv
