"""Checks the mail server and the outbox for `doctor`."""

from collections.abc import Iterator, Mapping

from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.language import mark, say, say_count
from paygw_batch.notices.channels import build_channels
from paygw_batch.notices.delivery import list_notices, probe_mail_server
from paygw_batch.notices.words import FailureKind, describe_failure
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.health import Health, HealthCheck
from paygw_batch.show.summary import ExitCode
from paygw_batch.submit.notices import has_notice_recipients

_NOTICES = mark("notices")


def checks(settings: Settings, environ: Mapping[str, str]) -> Iterator[HealthCheck]:
    """Yield health checks of the mail server and of unsent notices. Sends nothing."""
    if not has_notice_recipients(settings):
        return
    section = settings.notices
    try:
        channels = build_channels(settings, environ)
        unsent_notices = [notice for notice in list_notices(settings) if notice.tries and notice.sent_at is None]
    except PaygwError as error:
        code = ExitCode.USAGE if isinstance(error, ConfigurationError) else ExitCode.JOURNAL
        yield HealthCheck.failed(_NOTICES, error, code)
        return
    if channels.mail is not None and (failure := probe_mail_server(channels)) is not None:
        is_usage_error = failure.kind in {FailureKind.UNTRUSTED, FailureKind.NOT_ENCRYPTED, FailureKind.SIGN_IN}
        message = say("{server}: {reason}", server=section.smtp, reason=describe_failure(failure.code))
        yield HealthCheck(_NOTICES, Health.BAD, message, ExitCode.USAGE if is_usage_error else ExitCode.STOPPED_EARLY)
    else:
        names = [*([section.smtp or ""] if channels.mail else []), *([say("a webhook")] if channels.webhook else [])]
        yield HealthCheck(_NOTICES, Health.GOOD, say("sent by {ways}", ways=", ".join(names)))
    if given_up_count := sum(notice.is_given_up for notice in unsent_notices):
        message = say_count(
            given_up_count,
            "{count:,} was given up after several days. To retry it, run `paygw-batch notices send --again`",
            "{count:,} were given up after several days. To retry them, run `paygw-batch notices send --again`",
        )
        yield HealthCheck(_NOTICES, Health.BAD, message, ExitCode.STOPPED_EARLY)
    elif unsent_notices:
        message = say_count(
            len(unsent_notices),
            "{count:,} could not be sent yet. To see why, run `paygw-batch notices`",
            "{count:,} could not be sent yet. To see why, run `paygw-batch notices`",
        )
        yield HealthCheck(_NOTICES, Health.WARNING, message)
