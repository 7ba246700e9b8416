"""The ASGI application of a service: it finds the route and the tenant of a request, and sends refusals."""

from __future__ import annotations

import logging
import secrets
from itertools import count

from stretto.http import ClientLeft
from stretto.model.errors import InternalError, StrettoError
from stretto.model.foreign import bug_of
from stretto.service.config import ServiceConfig
from stretto.service.request import Receive, Scope, Send, ServiceRequest
from stretto.service.routes import Routes
from stretto.service.tenants import Tenants

_LOG = logging.getLogger("stretto.service")


class ServiceApp:
    """An ASGI application.

    Attributes:
        routes: table of its routes, to which others may be added.
        num_open: number of requests that are being answered.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.routes = Routes()
        self.num_open = 0
        self._config = config
        self._tenants = Tenants(config)
        self._run = secrets.token_hex(4)
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        request_id = f"{self._run}-{next(self._numbers)}"
        request = ServiceRequest(scope, receive, send, request_id, self._config)
        self.num_open += 1
        try:
            route, request.parts = self.routes.find(request.method, request.path)
            if not route.is_open:
                request.tenant = self._tenants.find(request.header(b"authorization"))
            await route.handler(request)
        except ClientLeft:
            pass
        except InternalError as error:
            _LOG.error("request %s: %s", request_id, error, exc_info=error)
            await request.refuse(error)
        except StrettoError as error:
            await request.refuse(error)
        except Exception as error:
            _LOG.exception("request %s", request_id)
            await request.refuse(bug_of(error))
        finally:
            request.release()
            self.num_open -= 1
