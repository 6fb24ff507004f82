/* The web page of a server: one file, embedded, that talks to the server's own routes. */
#ifndef GR_TOOLS_PAGE_H
#define GR_TOOLS_PAGE_H

#include "http.h"

/* GET /. The browser runs the page's own script alone. */
gr_handler_fn gr_page;

#endif
