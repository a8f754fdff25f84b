// SPDX-License-Identifier: Apache-2.0

import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;
import org.apache.dubbo.rpc.service.GenericService;

/**
 * An application that registers itself with Dubbo, as one that nobody has rewritten for Usher, and has Dubbo's QoS
 * server. It writes "ready" once it has registered, and ends with its standard input.
 */
public class Provider {
    public static void main(String[] args) throws Exception {
        String server = args[0], service = args[1];
        int port = Integer.parseInt(args[2]), qos = Integer.parseInt(args[3]);
        boolean foreign = Boolean.parseBoolean(args[4]);
        ApplicationConfig application = new ApplicationConfig("stock");
        application.setQosEnable(true);
        application.setQosPort(qos);
        application.setQosAcceptForeignIp(foreign);
        application.setRegisterMode("interface");
        ServiceConfig<GenericService> config = new ServiceConfig<>();
        config.setInterface(service);
        config.setVersion("1.0.0");
        config.setGeneric("true");
        config.setRef((method, types, values) -> "answered");
        DubboBootstrap.getInstance()
                .application(application)
                .registry(new RegistryConfig("zookeeper://" + server))
                .protocol(new ProtocolConfig("dubbo", port))
                .service(config)
                .start();
        System.out.println("ready");
        System.out.flush();
        while (System.in.read() >= 0) {
            // Only the end matters.
        }
        System.exit(0);
    }
}
