"""A single-node Kafka broker in KRaft mode, from Maven's jars."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

from tests.integration.parts import certificates, install, tokens
from tests.integration.parts.server import Server, free_port

USER, PASSWORD = "etl", "s3cret-of-the-broker"

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},SCRAM://127.0.0.1:{scram},MUTUAL://127.0.0.1:{mutual},OAUTH://127.0.0.1:{oauth},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},SCRAM://127.0.0.1:{scram},MUTUAL://127.0.0.1:{mutual},OAUTH://127.0.0.1:{oauth}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,SCRAM:SASL_SSL,MUTUAL:SSL,OAUTH:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.scram.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.mutual.ssl.client.auth=required
listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config={security}.OAuthBearerLoginModule required;
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class={security}.OAuthBearerValidatorCallbackHandler
listener.name.oauth.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={keys}
ssl.keystore.type=PEM
ssl.keystore.location={certificates.server}
ssl.truststore.type=PEM
ssl.truststore.location={certificates.authority}
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
log.dirs={home}/data
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
offsets.topic.num.partitions=2
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=1000
log.cleaner.backoff.ms=500
log.segment.delete.delay.ms=100
auto.create.topics.enable=false
"""


class Broker(Server):
    """
    A broker with five listeners.

    ``bootstrap`` has no security. ``bootstrap_sasl`` uses SASL PLAIN with :data:`USER` and :data:`PASSWORD`, without encryption. ``bootstrap_scram`` uses the
    same user with SCRAM-SHA-512 over TLS. ``bootstrap_mutual`` uses TLS with the client certificate of ``certificates``. ``bootstrap_oauth``
    uses OAUTHBEARER with tokens of ``issuer``, without encryption.
    """

    def __init__(self, home: Path) -> None:
        jars = install.classpath("kafka")
        java = install.java()
        home.mkdir(parents=True, exist_ok=True)
        ports = {name: free_port() for name in ("plain", "sasl", "scram", "mutual", "oauth", "controller")}
        self.bootstrap = f"127.0.0.1:{ports['plain']}"
        self.bootstrap_sasl = f"127.0.0.1:{ports['sasl']}"
        self.bootstrap_scram = f"127.0.0.1:{ports['scram']}"
        self.bootstrap_mutual = f"127.0.0.1:{ports['mutual']}"
        self.bootstrap_oauth = f"127.0.0.1:{ports['oauth']}"
        self.issuer = tokens.TokenIssuer(home / "tokens")
        self.data = home / "data"
        self.certificates = certificates.make(home / "certificates")
        properties = home / "server.properties"
        properties.write_text(
            PROPERTIES.format(
                **ports,
                user=USER,
                password=PASSWORD,
                home=home,
                certificates=self.certificates,
                security="org.apache.kafka.common.security.oauthbearer",
                keys=self.issuer.keys.as_uri(),
            )
        )
        if not self.data.exists():
            subprocess.run(
                [
                    java, "-cp", jars, "kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(properties),
                    "--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]",
                ],
                check=True, capture_output=True,
            )  # fmt: skip
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.issuer.keys.as_uri()}"
        argv = [java, "-Xmx512m", "-XX:TieredStopAtLevel=1", allowed, "-cp", jars, "kafka.Kafka", str(properties)]
        super().__init__("kafka", home, argv, port=ports["plain"])
