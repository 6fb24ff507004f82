/* Sockets that systemd gives to services, and messages to it. */
#ifndef GR_TOOLS_SYSTEMD_H
#define GR_TOOLS_SYSTEMD_H

/* Returns the socket that systemd listens on for the process (LISTEN_FDS), -1: none. */
int gr_systemd_listener(void);
/* Tells systemd a state, "READY=1", where it asks for that (NOTIFY_SOCKET). */
void gr_systemd_notify(const char *state);

#endif
