"""``celery -A ill_app worker``: the app, with a broker that does to messages what NOETL_TEST_ILL says."""

from noetl_celery.app import app

app.conf.broker_transport = "ill_transport:Transport"
